// hybridge/hybridge.h from C, by the protocol of protocol.py. Numbers are tokens.
//
//   c_api MODEL.pte plain|lookup
#include <ctype.h>
#include <hybridge/hybridge.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1 << 16 };

static int done(hybridge_status status) {
  if (status != HYBRIDGE_OK) fprintf(stderr, "%s\n", hybridge_failure());
  return status == HYBRIDGE_OK;
}

// The numbers of "[count, [number, ...]]", flat.
static size_t numbers(const char* line, int64_t* values) {
  size_t count = 0;
  for (const char* at = line; *at != '\0';) {
    if (isdigit((unsigned char)*at)) {
      char* end;
      values[count++] = strtoll(at, &end, 10);
      at = end;
    } else {
      ++at;
    }
  }
  return count;
}

static int print(int64_t token, void* user) {
  int* given = user;
  printf((*given)++ > 0 ? ", %lld" : "%lld", (long long)token);
  return 1;
}

int main(int argc, char** argv) {
  static char line[LINE];
  static int64_t asked[LINE];
  hybridge_model model;
  hybridge_session session;
  if (argc != 3) return 2;
  if (!done(hybridge_model_open(argv[1], &model)) || !done(hybridge_session_open(model, &session))) return 1;
  while (fgets(line, LINE, stdin) != NULL) {
    const size_t count = numbers(line, asked);
    hybridge_generation how = hybridge_generation_defaults();
    how.max_new_tokens = (size_t)asked[0];
    how.drafter = strcmp(argv[2], "lookup") == 0 ? HYBRIDGE_PROMPT_LOOKUP : HYBRIDGE_NO_DRAFTER;
    int given = 0;
    if (count == 0) return 2;
    printf("[");
    if (!done(asked[0] == 0 ? hybridge_reset(session)
                            : hybridge_generate(session, asked + 1, count - 1, &how, print, &given, NULL))) {
      return 1;
    }
    printf("]\n");
    fflush(stdout);
  }
  return done(hybridge_session_close(session)) && done(hybridge_model_close(model)) ? 0 : 1;
}
