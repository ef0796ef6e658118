/* Converts a checkpoint to layout v7, proves the result, and runs its first layer on the CPU:
 *
 *   layer CHECKPOINT ARTIFACT
 *
 * Compile it with twofour.h and libtwofour.so: cc -std=c11 layer.c -I DIR -L DIR -ltwofour -o layer
 * lib/run/runtime/REFERENCE.md describes each function. Exit code 2 if something fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "twofour.h"

enum { kTokens = 4 };

static int fail(const char* what) {
  const char* advice = "";
  if (twofour_last_error_kind() == TWOFOUR_EXISTS) advice = " (the second argument is a directory to write)";
  if (twofour_last_error_kind() == TWOFOUR_NOT_FOUND) advice = " (the first argument is a checkpoint)";
  fprintf(stderr, "%s: %s%s\n", what, twofour_last_error(), advice);
  return 2;
}

/* Progress of a command on one line of stderr. Another result than 0 would stop the command. */
static int show(void* user, const char* phase, uint64_t done, uint64_t total) {
  (void)user;
  if (total > 0) fprintf(stderr, "\r%s %3d %%", phase, (int)(100 * (double)done / (double)total));
  return 0;
}

/* Runs a command of the program without a process. Its document of --json tells more than its exit code. */
static int command(int32_t count, const char* const* words, int32_t* code) {
  char* json = NULL;
  if (twofour_command(count, words, show, NULL, code, &json) != TWOFOUR_OK) return fail(words[0]);
  fprintf(stderr, "\n");
  printf("%s: exit code %d, %zu bytes of JSON\n", words[0], (int)*code, strlen(json));
  twofour_free(json);
  return 0;
}

/* Runs a layer on tokens that its router sends to experts. The arrays are the caller's. */
static int run(const twofour_artifact* artifact, const twofour_layer_info* info, const twofour_layer* layer,
               float* hidden, float* out, int32_t* ids, float* weights) {
  twofour_tokens tokens = {0};
  size_t workspace = 0;
  int64_t i, m;

  for (i = 0; i < kTokens * info->hidden; ++i) hidden[i] = (float)((i * 37) % 101 - 50) / 50.0f;
  if (twofour_route(artifact, 0, hidden, kTokens, info->top_k, ids, weights) != TWOFOUR_OK)
    return fail("route");
  tokens.size = sizeof(tokens);
  tokens.m = kTokens;
  tokens.top_k = info->top_k;
  tokens.dtype = TWOFOUR_F32;
  tokens.hidden = hidden;
  tokens.topk_ids = ids;
  tokens.topk_weights = weights;
  tokens.out = out;
  /* 0 on the CPU. On CUDA the workspace, and all of these arrays, are in memory of the device. */
  if (twofour_workspace_bytes(layer, kTokens, info->top_k, &workspace) != TWOFOUR_OK)
    return fail("workspace");
  if (twofour_forward(layer, &tokens, NULL, workspace, NULL) != TWOFOUR_OK) return fail("forward");
  for (m = 0; m < kTokens; ++m) {
    double squares = 0;
    for (i = 0; i < info->hidden; ++i) {
      const double x = (double)out[m * info->hidden + i];
      squares += x * x;
    }
    printf("token %d: expert %d first, mean square of the output %.3g\n", (int)m, (int)ids[m * info->top_k],
           squares / (double)info->hidden);
  }
  return 0;
}

int main(int argc, char** argv) {
  twofour_artifact* artifact = NULL;
  twofour_layer* layer = NULL;
  twofour_layer_info info = {0};
  int32_t code = 0;
  int result = 2;
  if (argc != 3) {
    fprintf(stderr, "usage: %s CHECKPOINT ARTIFACT\n", argv[0]);
    return 2;
  }
  printf("twofour %s\n", twofour_version());

  const char* const convert[] = {"convert", argv[1], argv[2], "--to", "v7"};
  if (command(5, convert, &code) != 0) return 2;
  const char* const validate[] = {"validate", argv[2], "--source", argv[1]};
  if (command(4, validate, &code) != 0) return 2;
  if (code != 0) { /* 1: there are differences, which the document lists */
    fprintf(stderr, "%s: expected an artifact of %s, found differences\n", argv[2], argv[1]);
    return 2;
  }

  info.size = sizeof(info); /* of each struct, so that later versions may append fields */
  if (twofour_open(argv[2], &artifact) != TWOFOUR_OK) return fail("open");
  if (twofour_get_layer_info(artifact, 0, &info) != TWOFOUR_OK ||
      twofour_load(artifact, 0, TWOFOUR_CPU, NULL, &layer) != TWOFOUR_OK) {
    fail("load");
  } else {
    const size_t numbers = (size_t)(kTokens * info.hidden), choices = (size_t)(kTokens * info.top_k);
    float* hidden = malloc(numbers * sizeof(float));
    float* out = malloc(numbers * sizeof(float));
    int32_t* ids = malloc(choices * sizeof(int32_t));
    float* weights = malloc(choices * sizeof(float));
    printf("%s: %s, %d experts, hidden %d, intermediate %d\n", info.name, info.layout, (int)info.experts,
           (int)info.hidden, (int)info.intermediate);
    if (hidden && out && ids && weights) result = run(artifact, &info, layer, hidden, out, ids, weights);
    free(hidden), free(out), free(ids), free(weights);
  }
  twofour_unload(layer); /* `info.name` is valid as long as the artifact */
  twofour_close(artifact);
  return result;
}
