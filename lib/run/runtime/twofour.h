/* The C interface of libtwofour.so: runs layers of twofour's artifacts and whole models, reads checkpoints,
 * and calls the program's commands.
 *
 * Functions that return int give TWOFOUR_OK or TWOFOUR_ERROR; twofour_last_error() then says why. Nothing
 * throws or prints; the program ends only where a file that a CPU layer reads is cut meanwhile (SIGBUS), or
 * where OpenMP can start no thread. Objects may be used from several threads at a time, but freed from one.
 * Structs begin with their own size, which the caller sets: fields may be added behind the last.
 */
#ifndef TWOFOUR_H
#define TWOFOUR_H

#include <stddef.h>
#include <stdint.h>

#define TWOFOUR_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header. A library of a higher number serves programs of this one; twofour_abi() is the library's.
 */
#define TWOFOUR_ABI 5

enum { TWOFOUR_OK = 0, TWOFOUR_ERROR = 1 };
enum { TWOFOUR_CPU = 0, TWOFOUR_CUDA = 1 };
/* The CUDA device with an index, instead of the current one; since ABI 2. */
#define TWOFOUR_CUDA_DEVICE(index) (16 + (index))
enum { TWOFOUR_F32 = 0, TWOFOUR_BF16 = 1, TWOFOUR_F16 = 2 };

/* An artifact in a layout of twofour, open for running. */
typedef struct twofour_artifact twofour_artifact;
/* One of its layers on a device; outlives the artifact. */
typedef struct twofour_layer twofour_layer;

typedef struct {
  size_t size;           /* sizeof(twofour_layer_info) */
  const char* name;      /* "model.layers.0.mlp.experts"; as long as the artifact or layer */
  const char* layout;    /* its name: "v7", for example */
  int64_t experts;       /* E */
  int64_t hidden;        /* H */
  int64_t intermediate;  /* I */
  int32_t gated;         /* 1: silu(gate) * up; 0: relu(x)^2 */
  int32_t top_k;         /* experts a token, as config.json says */
  uint64_t weight_bytes; /* as they are stored */
  uint64_t device_bytes; /* of device memory that it takes on CUDA */
} twofour_layer_info;

typedef struct {
  size_t size;               /* sizeof(twofour_options) */
  const int32_t* expert_map; /* [expert_map_size] global to local expert, -1: not here; NULL: the identity */
  int64_t expert_map_size;
  int32_t weight_on_input; /* 1: the router's weight multiplies hidden instead of the result */
  float limit;             /* clamp of gate and up; 0: none */
} twofour_options;

typedef struct {
  size_t size; /* sizeof(twofour_tokens) */
  int64_t m;   /* tokens */
  int64_t top_k;
  int32_t dtype;             /* of hidden and out: TWOFOUR_F32, TWOFOUR_BF16 or TWOFOUR_F16 */
  const void* hidden;        /* [m, H]; CUDA: on a multiple of two numbers */
  const int32_t* topk_ids;   /* [m, top_k] */
  const float* topk_weights; /* [m, top_k] */
  void* out;                 /* [m, H] */
  /* CUDA: [1], set to 1 by an id out of range, which then contributes nothing; the caller clears it. NULL:
   * not reported. On the CPU such an id is an error. */
  int32_t* error_flag;
} twofour_tokens;

/* "VERSION (COMMIT)" */
TWOFOUR_API const char* twofour_version(void);
/* TWOFOUR_ABI of this library; those before ABI 2 do not have the function. */
TWOFOUR_API int twofour_abi(void);
/* What the last function of this thread that failed found wrong: "where: expected X, found Y". */
TWOFOUR_API const char* twofour_last_error(void);
/* 1 where this library and this machine can run on CUDA. */
TWOFOUR_API int twofour_has_cuda(void);
/* Frees a text that this library made; NULL is one. Since ABI 3. */
TWOFOUR_API void twofour_free(char* text);

/* Reads headers, config.json and twofour.json, no weights. */
TWOFOUR_API int twofour_open(const char* path, twofour_artifact** artifact);
TWOFOUR_API void twofour_close(twofour_artifact* artifact);

TWOFOUR_API int64_t twofour_layer_count(const twofour_artifact* artifact);
TWOFOUR_API int twofour_get_layer_info(const twofour_artifact* artifact, int64_t layer,
                                       twofour_layer_info* info);
/* By prefix ("model.layers.0.mlp.experts") or number ("0"); an error unless it means one layer. */
TWOFOUR_API int twofour_find_layer(const twofour_artifact* artifact, const char* name, int64_t* layer);

/* Puts a layer on TWOFOUR_CPU, where it computes from the mapped file, or on TWOFOUR_CUDA, in the memory of
 * the current device, or on TWOFOUR_CUDA_DEVICE(index). Looks at every stored byte once. `options` may be
 * NULL. */
TWOFOUR_API int twofour_load(const twofour_artifact* artifact, int64_t layer, int device,
                             const twofour_options* options, twofour_layer** loaded);
TWOFOUR_API void twofour_unload(twofour_layer* layer);

/* A tensor of a layout: [experts, rows, cols] elements of one byte. */
typedef struct {
  size_t size;        /* sizeof(twofour_part) */
  const char* suffix; /* "comp" in "P.w13_comp" */
  const char* dtype;  /* safetensors' name: "U8", "F8_E4M3" */
  int64_t rows, cols;
  int32_t parts; /* how many the layout has */
} twofour_part;
/* Part `part`, from 0, of a matrix [experts, n, k] in a layout; `gated`: w13 with rows gate then up. Since
 * ABI 3. */
TWOFOUR_API int twofour_get_part(const char* layout, int64_t experts, int64_t n, int64_t k, int32_t gated,
                                 int32_t part, twofour_part* out);

#define TWOFOUR_MOST_PARTS 4
/* A layer as the caller holds it, in memory of a device: w13 [E, 2I or I, H] and w2 [E, H, I]. */
typedef struct {
  size_t size;        /* sizeof(twofour_stored_layer) */
  const char* name;   /* for messages */
  const char* layout; /* "v7" */
  int64_t experts, hidden, intermediate;
  int32_t gated;
  const void* w13_parts[TWOFOUR_MOST_PARTS]; /* by part of the layout; others NULL */
  const void* w2_parts[TWOFOUR_MOST_PARTS];
  const float* w13_global_scale; /* [E], multipliers */
  const float* w2_global_scale;
} twofour_stored_layer;
/* A layer over weights that the caller holds in memory of the device, unchanged until twofour_unload. Looks
 * at every stored byte once, on CUDA by copies to the host on the default stream: what other streams write
 * must be there. Since ABI 3. */
TWOFOUR_API int twofour_borrow(const twofour_stored_layer* stored, int device, const twofour_options* options,
                               twofour_layer** loaded);

/* Bytes of workspace for up to `m` tokens; 0 on the CPU. It need not be cleared, and any layers can use it in
 * turn, but only one call at a time: of two at once neither may ever end. */
TWOFOUR_API int twofour_workspace_bytes(const twofour_layer* layer, int64_t m, int64_t top_k, size_t* bytes);

/* Runs the layer on pointers to memory of its device, `workspace` on a multiple of 256 bytes. `stream` is a
 * cudaStream_t (NULL: the default stream); work is put on it, nothing is allocated and nothing waits, so it
 * can be captured in a graph. `stream` belongs to the layer's device, which need not be current. `topk_ids`
 * must not change until the work is done. One token may go in a cooperative launch, which waits until the
 * device has room for all its blocks: a kernel that fills the device and waits for this layer waits for ever.
 * On the CPU stream and workspace are not used and all is done on return. */
TWOFOUR_API int twofour_forward(const twofour_layer* layer, const twofour_tokens* tokens, void* workspace,
                                size_t workspace_bytes, void* stream);

/* Runs the layer's own router in host memory, as model_type and config.json say: hidden float32 [m, H] to
 * topk_ids and topk_weights [m, top_k], the best expert first. */
TWOFOUR_API int twofour_route(const twofour_artifact* artifact, int64_t layer, const float* hidden, int64_t m,
                              int64_t top_k, int32_t* topk_ids, float* topk_weights);

/* A stack of matrices [experts, n, k] as the caller holds it; a linear is a stack of one. Since ABI 3. */
typedef struct twofour_matrix twofour_matrix;
typedef struct {
  size_t size;        /* sizeof(twofour_stored_matrix) */
  const char* name;   /* for messages */
  const char* layout; /* "v7"; "nvfp4": weight [E, N, K/2] and scale [E, N, K/16] as checkpoints store them */
  int64_t experts, n, k;
  int32_t gated; /* 1: rows are gate then up, which g8 interleaves; results are gate then up */
  const void* parts[TWOFOUR_MOST_PARTS];
  const float* global_scale; /* [experts], multipliers */
} twofour_stored_matrix;
/* As twofour_borrow. */
TWOFOUR_API int twofour_borrow_matrix(const twofour_stored_matrix* stored, int device,
                                      twofour_matrix** matrix);
TWOFOUR_API void twofour_release_matrix(twofour_matrix* matrix);
/* Bytes of workspace for `rows` rows; 0 on the CPU. */
TWOFOUR_API int twofour_multiply_bytes(const twofour_matrix* matrix, int64_t rows, size_t* bytes);
/* out[r] = w[ids[r]] x[r], x [rows, k] and out [rows, n] of `dtype`, ids [rows]. Otherwise as
 * twofour_forward; on CUDA an id out of range leaves its row of `out` as it is. */
TWOFOUR_API int twofour_multiply(const twofour_matrix* matrix, int64_t rows, int32_t dtype, const void* x,
                                 const int32_t* ids, void* out, void* workspace, size_t workspace_bytes,
                                 void* stream);

/* A checkpoint or artifact in any dialect, layout or number format, open for reading. Since ABI 3. */
typedef struct twofour_checkpoint twofour_checkpoint;

/* A directory or one safetensors file. Reads headers and configs. */
TWOFOUR_API int twofour_open_checkpoint(const char* path, twofour_checkpoint** checkpoint);
/* With a word for zero points of INT4 that the config contradicts: "stored", "symmetric" or "v2", as
 * --zero-points; "" refuses to read such a module. Since ABI 5. */
TWOFOUR_API int twofour_open_checkpoint_with(const char* path, const char* zero_points,
                                             twofour_checkpoint** checkpoint);
TWOFOUR_API void twofour_close_checkpoint(twofour_checkpoint* checkpoint);
/* What it holds, as JSON for twofour_free(): "what" it is in words, "tensors" of its files (name, dtype,
 * shape, bytes, file), "modules" (name, format, shape, bytes, tensors; of an artifact in a layout those of
 * its source) and "matrices", parts of stacks that can be read by a name of their own (name, module, shape).
 */
TWOFOUR_API int twofour_list(const twofour_checkpoint* checkpoint, char** json);
/* Values as float32, in row-major order: of a module or matrix its weights, of a tensor its elements. The
 * ranges [begin, end) are one a dimension, `count` is the number of values in them. */
TWOFOUR_API int twofour_read_values(const twofour_checkpoint* checkpoint, const char* name, int32_t dims,
                                    const int64_t* begin, const int64_t* end, float* values, uint64_t count);
/* Bytes of a tensor as they are stored. */
TWOFOUR_API int twofour_read_bytes(const twofour_checkpoint* checkpoint, const char* tensor, uint64_t offset,
                                   void* to, uint64_t bytes);

/* A whole model, run in float32 from what its directory stores: lib/run/decoder/README.md says which, and how
 * on CUDA. Since ABI 3. */
typedef struct twofour_model twofour_model;
/* Tokens that a model has seen so far. */
typedef struct twofour_sequence twofour_sequence;

typedef struct {
  size_t size; /* sizeof(twofour_model_info) */
  int64_t layers, hidden, vocabulary;
} twofour_model_info;

/* On the CPU. */
TWOFOUR_API int twofour_open_model(const char* path, twofour_model** model);
/* On TWOFOUR_CPU, TWOFOUR_CUDA (the current device) or TWOFOUR_CUDA_DEVICE(index), which holds its weights as
 * they are stored; where they do not fit, layer by layer. Tokens and logits are in host memory. Calls of
 * several threads that run a model on CUDA take turns. Since ABI 4. */
TWOFOUR_API int twofour_open_model_on(const char* path, int device, twofour_model** model);
/* With a word for zero points, as twofour_open_checkpoint_with. Since ABI 5. */
TWOFOUR_API int twofour_open_model_with(const char* path, int device, const char* zero_points,
                                        twofour_model** model);
TWOFOUR_API void twofour_close_model(twofour_model* model);
TWOFOUR_API int twofour_get_model_info(const twofour_model* model, twofour_model_info* info);
/* An empty sequence; the model outlives it. One thread at a time uses it. */
TWOFOUR_API int twofour_begin_sequence(const twofour_model* model, twofour_sequence** sequence);
TWOFOUR_API void twofour_end_sequence(twofour_sequence* sequence);
/* Appends tokens. `logits` is [count, vocabulary] with `all`, else [vocabulary], of the last token. */
TWOFOUR_API int twofour_append(twofour_sequence* sequence, const int32_t* tokens, int64_t count, int32_t all,
                               float* logits);

/* Sees how far a command is: bytes done of a total. Returns 0 to go on, another number to stop it. */
typedef int (*twofour_progress)(void* user, const char* phase, uint64_t done, uint64_t total);
/* Runs a command of the program, `words` being its name and arguments as tools/README.md has them, without
 * starting a process: nothing is printed. `progress`, which may be NULL, is called on this thread before
 * the command, about 20 times a second, and behind it; it must call no command. `code` is the exit code of
 * the program: 0, 1 (findings or differences), 2, or 130 (stopped by `progress`). With 0 and 1 the result is
 * TWOFOUR_OK and `json` the document that tools/JSON.md describes, for twofour_free(). One command runs at a
 * time, others wait. Stopping one stops twofour_load and twofour_append of other threads, too. Since ABI 3.
 */
TWOFOUR_API int twofour_command(int32_t count, const char* const* words, twofour_progress progress,
                                void* user, int32_t* code, char** json);

#ifdef __cplusplus
}
#endif

#endif
