/* What the C interface does beside layers: commands CHECKPOINT NAME K. Runs `lint`, stops a second one, is refused a
 * third; prints the document, the messages, and the first K values and bytes of the tensor NAME. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "twofour.h"

static void fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, twofour_last_error());
  exit(2);
}

static int calls = 0;

static int go_on(void* user, const char* phase, uint64_t done, uint64_t total) {
  if (user != &calls || phase == NULL || done > total) exit(3);
  ++calls;
  return 0;
}

static int stop(void* user, const char* phase, uint64_t done, uint64_t total) {
  (void)user, (void)phase, (void)done, (void)total;
  return 1;
}

int main(int argc, char** argv) {
  const char* words[] = {"lint", argc == 4 ? argv[1] : "", "--headers-only"};
  const char* wrong[] = {"lint", "--no-such-option"};
  const int64_t count = argc == 4 ? atoll(argv[3]) : 0;
  const int64_t begin[] = {0}, end[] = {count};
  char* json = NULL;
  int32_t code = -1;
  twofour_checkpoint* checkpoint = NULL;
  float* values = malloc((size_t)(count + 1) * sizeof(float));
  unsigned char byte = 0;
  int64_t i;

  if (argc != 4 || values == NULL) return 2;
  if (twofour_command(3, words, go_on, &calls, &code, &json) != TWOFOUR_OK) fail("lint");
  if (code > 1 || calls < 1) return 4;
  fputs(json, stdout);
  twofour_free(json);

  if (twofour_command(3, words, stop, NULL, &code, &json) != TWOFOUR_ERROR || json != NULL) return 5;
  printf("%d %s\n", (int)code, twofour_last_error());
  if (twofour_command(2, wrong, NULL, NULL, &code, &json) != TWOFOUR_ERROR) return 6;
  if (twofour_last_error_kind() != TWOFOUR_ARGUMENT) return 9;
  printf("%d %s\n", (int)code, twofour_last_error());

  if (twofour_open_checkpoint(argv[1], &checkpoint) != TWOFOUR_OK) fail("open");
  if (twofour_list(checkpoint, &json) != TWOFOUR_OK) fail("list");
  printf("%d\n", strstr(json, argv[2]) != NULL);
  twofour_free(json);
  if (twofour_read_values(checkpoint, argv[2], 1, begin, end, values, (uint64_t)count) != TWOFOUR_OK)
    fail("values");
  if (twofour_read_bytes(checkpoint, argv[2], 1, &byte, 1) != TWOFOUR_OK) fail("bytes");
  if (twofour_read_bytes(checkpoint, argv[2], 1, NULL, 1) != TWOFOUR_ERROR) return 8;
  for (i = 0; i < count; ++i) printf("%g ", values[i]);
  printf("%d\n", (int)byte);
  if (twofour_read_values(checkpoint, argv[2], 1, begin, end, values, (uint64_t)count + 1) != TWOFOUR_ERROR)
    return 7;
  printf("%s\n", twofour_last_error());
  twofour_close_checkpoint(checkpoint);
  free(values);
  return 0;
}
