// engine/status.h: failures keep their words on the way up, and success costs a null pointer.
#include "engine/status.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

namespace {

using hybridge::Result;
using hybridge::Status;

void require(bool is_so, int line) {
  if (is_so) return;
  std::fprintf(stderr, "not so: line %d\n", line);
  std::exit(1);
}
#define REQUIRE(what) require((what), __LINE__)

// Not to be copied, as a session is.
Result<std::unique_ptr<int>> make(int number) {
  if (number < 0) return Status(HYBRIDGE_INVALID_ARGUMENT, std::to_string(number) + " is below 0; give more");
  return std::make_unique<int>(number);
}

Status check(int number) {
  if (number > 9) return Status(HYBRIDGE_NO_ROOM, "there is room for 9");
  return Status();
}

int calls = 0;

Result<int> twice(int number) {
  HYBRIDGE_TRY(check(number));
  const auto made = HYBRIDGE_TRY(make(number));
  ++calls;
  return 2 * *made;
}

Status outer(int number) {
  return HYBRIDGE_TRY(twice(HYBRIDGE_TRY(twice(number)))) < 100 ? Status() : Status(HYBRIDGE_INTERNAL, "too much");
}

}  // namespace

int main() {
  const Status success;
  REQUIRE(success.ok() && success.code() == HYBRIDGE_OK && success.words().empty());
  REQUIRE(*twice(4) == 8 && calls == 1);

  const Result<int> refused = twice(-3);
  REQUIRE(!refused.ok() && refused.status().code() == HYBRIDGE_INVALID_ARGUMENT);
  REQUIRE(refused.status().words() == "-3 is below 0; give more");
  REQUIRE(twice(10).status().code() == HYBRIDGE_NO_ROOM && calls == 1);

  REQUIRE(outer(2).ok() && outer(5).code() == HYBRIDGE_NO_ROOM);
  REQUIRE(outer(-1).words() == "-1 is below 0; give more");

  Status copy = refused.status();
  const Status moved = std::move(copy);
  REQUIRE(moved.words() == refused.status().words());

  auto taken = HYBRIDGE_OK == success.code() ? make(7) : make(-1);
  const std::unique_ptr<int> number = *std::move(taken);
  REQUIRE(*number == 7);
  std::puts("done");
}
