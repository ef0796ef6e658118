/* Uses libtwofour.so as a C program does: client ARTIFACT LAYER TOKENS. Prints the layer's shape, then
 * the output of tokens that tests/tools/prompt/c_api_test.cpp makes in the same way. Exit code 1 where a call that
 * must fail does not, or the other way round. */
#include "twofour.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, twofour_last_error());
  exit(1);
}

static void must(int status, const char* what) {
  if (status != TWOFOUR_OK) fail(what);
}

static void must_not(int status, const char* message) {
  if (status == TWOFOUR_OK || strstr(twofour_last_error(), message) == NULL) fail(message);
}

static void check_refusals(const char* path, twofour_artifact* artifact, twofour_layer* layer) {
  twofour_artifact* other = artifact;
  twofour_layer* none = layer;
  twofour_layer_info info = {0};
  twofour_options options = {0};
  twofour_tokens tokens = {0};
  int64_t index = 0;
  size_t bytes = 0;
  must_not(twofour_open("/nonexistent/artifact", &other), "/nonexistent/artifact");
  if (other != NULL) fail("expected NULL from an open that failed");
  if (twofour_last_error_kind() != TWOFOUR_NOT_FOUND) fail("expected the kind of a missing path");
  must_not(twofour_open(NULL, &other), "path: expected a pointer, found NULL");
  must_not(twofour_open(path, NULL), "artifact: expected a pointer, found NULL");
  must_not(twofour_find_layer(artifact, "nothing", &index), "nothing: expected the name of one layer");
  if (twofour_last_error_kind() != TWOFOUR_ARGUMENT) fail("expected the kind of an invalid argument");
  must_not(twofour_get_layer_info(artifact, 0, &info), "twofour_layer_info: expected size");
  info.size = sizeof(info);
  must_not(twofour_get_layer_info(artifact, -1, &info), "layer: expected 0 to");
  must_not(twofour_get_layer_info(artifact, 1 << 20, &info), "layer: expected 0 to");
  must_not(twofour_load(artifact, 0, 7, NULL, &none),
           "device: expected TWOFOUR_CPU, TWOFOUR_CUDA or TWOFOUR_CUDA_DEVICE(index), found 7");
  if (none != NULL) fail("expected NULL from a load that failed");
  must_not(twofour_load(artifact, 0, TWOFOUR_CPU, &options, &none), "twofour_options: expected size");
  options.size = sizeof(options);
  options.expert_map_size = 3;
  must_not(twofour_load(artifact, 0, TWOFOUR_CPU, &options, &none), "expert_map: expected a pointer");
  must_not(twofour_workspace_bytes(NULL, 1, 1, &bytes), "layer: expected a pointer, found NULL");
  must_not(twofour_forward(layer, &tokens, NULL, 0, NULL), "twofour_tokens: expected size");
  tokens.size = sizeof(tokens);
  tokens.dtype = 9;
  must_not(twofour_forward(layer, &tokens, NULL, 0, NULL), "dtype: expected TWOFOUR_F32");
  tokens.dtype = TWOFOUR_F32;
  tokens.m = tokens.top_k = 1;
  must_not(twofour_forward(layer, &tokens, NULL, 0, NULL), "expected hidden, topk_ids, topk_weights and out");
  if (twofour_abi() != TWOFOUR_ABI) fail("expected the library of this header");
  const int far_device = TWOFOUR_CUDA_DEVICE(1000);
  if (twofour_has_cuda()) {
    must_not(twofour_load(artifact, 0, far_device, NULL, &none), "expected a CUDA device from 0 to");
  } else {
    must_not(twofour_load(artifact, 0, TWOFOUR_CUDA, NULL, &none), "expected a CUDA device, found none");
    must_not(twofour_load(artifact, 0, far_device, NULL, &none), "expected a CUDA device, found none");
  }
  twofour_close(NULL);
  twofour_unload(NULL);
  if (twofour_layer_count(NULL) != 0) fail("expected no layers without an artifact");
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int64_t m = strtol(argv[3], NULL, 10), top_k = 2;
  twofour_artifact* artifact = NULL;
  twofour_layer* layer = NULL;
  int64_t index = -1;
  twofour_layer_info info = {0};
  info.size = sizeof(info);
  must(twofour_open(argv[1], &artifact), "open");
  must(twofour_find_layer(artifact, argv[2], &index), "find");
  must(twofour_get_layer_info(artifact, index, &info), "info");
  printf("%s %s %lld %lld %lld %d\n", info.name, info.layout, (long long)info.experts, (long long)info.hidden,
         (long long)info.intermediate, (int)info.gated);

  twofour_options options = {0};
  options.size = sizeof(options);
  options.limit = 2.0f;
  must(twofour_load(artifact, index, TWOFOUR_CPU, &options, &layer), "load");
  check_refusals(argv[1], artifact, layer);

  const size_t numbers = (size_t)(m * info.hidden), rows = (size_t)(m * top_k);
  float* hidden = malloc(numbers * sizeof(float));
  float* out = malloc(numbers * sizeof(float));
  float* weights = malloc(rows * sizeof(float));
  int32_t* ids = malloc(rows * sizeof(int32_t));
  uint32_t state = 1;
  for (size_t i = 0; i < numbers; ++i) {
    state = state * 1664525u + 1013904223u;
    hidden[i] = ((float)(state >> 8 & 2047) - 1024.0f) / 512.0f;
  }
  for (size_t i = 0; i < rows; ++i) {
    ids[i] = (int32_t)((7 * i + i / 2) % (size_t)info.experts);
    weights[i] = 1.0f / (float)(1 + i % 3);
  }
  twofour_close(artifact); /* the layer outlives it */

  twofour_tokens tokens = {0};
  tokens.size = sizeof(tokens);
  tokens.m = m;
  tokens.top_k = top_k;
  tokens.dtype = TWOFOUR_F32;
  tokens.hidden = hidden;
  tokens.topk_ids = ids;
  tokens.topk_weights = weights;
  tokens.out = out;
  size_t workspace = 1;
  must(twofour_workspace_bytes(layer, m, top_k, &workspace), "workspace");
  if (workspace != 0) fail("expected no workspace on the CPU");
  must(twofour_forward(layer, &tokens, NULL, 0, NULL), "forward");
  for (size_t i = 0; i < numbers; ++i) printf("%.9g\n", (double)out[i]);
  ids[rows - 1] = (int32_t)info.experts;
  must_not(twofour_forward(layer, &tokens, NULL, 0, NULL), "topk_ids");
  twofour_unload(layer);
  free(hidden), free(out), free(weights), free(ids);
  return 0;
}
