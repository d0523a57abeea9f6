// PCRE2 as hybridge builds it: UTF-8, Unicode properties, no just-in-time compiler (iOS forbids it).
#define SUPPORT_PCRE2_8 1
#define SUPPORT_UNICODE 1
#define PCRE2_STATIC 1
#define PCRE2_EXPORT
#define HAVE_STDINT_H 1
#define HAVE_INTTYPES_H 1
#define LINK_SIZE 2
#define HEAP_LIMIT 20000000
#define MATCH_LIMIT 10000000
#define MATCH_LIMIT_DEPTH 10000000
#define MAX_NAME_COUNT 10000
#define MAX_NAME_SIZE 128
#define MAX_VARLOOKBEHIND 255
#define NEWLINE_DEFAULT 2
#define PARENS_NEST_LIMIT 250
