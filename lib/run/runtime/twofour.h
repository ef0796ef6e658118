/* The C interface of libtwofour.so. It runs layers of twofour's artifacts and whole models, reads
 * checkpoints, and calls the program's commands.
 *
 * Functions that return int return TWOFOUR_OK or TWOFOUR_ERROR; twofour_last_error() then has the reason,
 * and twofour_last_error_kind() its kind. No function throws or prints. The process ends only if a file that
 * a CPU layer reads is cut during the call (SIGBUS), or if OpenMP cannot start a thread. Several threads may
 * use an object at the same time, but only one may free it. Structs begin with their own size, which the
 * caller sets, since later versions may append fields. A process that fork() made may use the library, also
 * CPU objects of its parent, unless the parent was in a call of this library at that moment; then every call
 * in the child is an error. */
#ifndef TWOFOUR_H
#define TWOFOUR_H

#include <stddef.h>
#include <stdint.h>

#define TWOFOUR_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* The ABI number of this header. A library with a higher number supports programs that were built with
 * this header. twofour_abi() returns the number of the library. */
#define TWOFOUR_ABI 6

/* What functions return. */
enum { TWOFOUR_OK = 0, TWOFOUR_ERROR = 1 };
/* The kinds of errors. TWOFOUR_NOT_FOUND: a file or directory is missing. TWOFOUR_EXISTS: one is there and
 * may not be replaced. TWOFOUR_ARGUMENT: an argument or option is unknown or has an invalid value. Since ABI
 * 6. */
enum { TWOFOUR_OTHER = 0, TWOFOUR_NOT_FOUND = 1, TWOFOUR_EXISTS = 2, TWOFOUR_ARGUMENT = 3 };
/* The devices of a layer, matrix or model. */
enum { TWOFOUR_CPU = 0, TWOFOUR_CUDA = 1 };
/* The CUDA device with this index. TWOFOUR_CUDA is the current device. Since ABI 2. */
#define TWOFOUR_CUDA_DEVICE(index) (16 + (index))
/* The types of a layer's input and output. */
enum { TWOFOUR_F32 = 0, TWOFOUR_BF16 = 1, TWOFOUR_F16 = 2 };

/* An artifact in a layout of twofour, open for running. */
typedef struct twofour_artifact twofour_artifact;
/* A layer of an artifact on a device. It remains valid after the artifact is closed. */
typedef struct twofour_layer twofour_layer;

/* A layer of an artifact: routed experts, or a dense MLP as one expert. */
typedef struct {
  size_t size;           /* sizeof(twofour_layer_info) */
  const char* name;      /* "model.layers.0.mlp.experts"; valid as long as the artifact or layer */
  const char* layout;    /* name of the layout, such as "v7" */
  int64_t experts;       /* E */
  int64_t hidden;        /* H */
  int64_t intermediate;  /* I */
  int32_t gated;         /* 1 for silu(gate) * up, 0 for relu(x)^2 */
  int32_t top_k;         /* experts per token according to config.json */
  uint64_t weight_bytes; /* size of the stored weights in bytes */
  uint64_t device_bytes; /* device memory that the layer needs on CUDA, in bytes */
} twofour_layer_info;

/* How a layer is loaded. */
typedef struct {
  size_t size;               /* sizeof(twofour_options) */
  const int32_t* expert_map; /* [expert_map_size] global to local; -1 if not here; NULL for the identity */
  int64_t expert_map_size;   /* number of global experts; 0 with NULL */
  int32_t weight_on_input;   /* 1 if the router's weight multiplies hidden instead of the result */
  float limit;               /* limit to which gate and up are clamped; 0 for no limit */
} twofour_options;

/* Tokens for a layer, in memory of its device, without gaps. */
typedef struct {
  size_t size;               /* sizeof(twofour_tokens) */
  int64_t m;                 /* number of tokens */
  int64_t top_k;             /* experts per token */
  int32_t dtype;             /* type of hidden and out: TWOFOUR_F32, TWOFOUR_BF16 or TWOFOUR_F16 */
  const void* hidden;        /* [m, H]; on CUDA, aligned to two numbers */
  const int32_t* topk_ids;   /* [m, top_k] */
  const float* topk_weights; /* [m, top_k] */
  void* out;                 /* [m, H] */
  /* [1], for CUDA. An id out of range contributes nothing and sets this to 1. The caller clears it. If it is
   * NULL, such ids are not reported. On the CPU, such an id is an error. */
  int32_t* error_flag;
} twofour_tokens;

/* The version of this library: "VERSION (COMMIT)". */
TWOFOUR_API const char* twofour_version(void);
/* The TWOFOUR_ABI of this library. Libraries before ABI 2 do not have this function. */
TWOFOUR_API int twofour_abi(void);
/* The error of the last function that failed on this thread: "where: expected X, found Y". */
TWOFOUR_API const char* twofour_last_error(void);
/* The kind of that error: TWOFOUR_OTHER, TWOFOUR_NOT_FOUND, TWOFOUR_EXISTS or TWOFOUR_ARGUMENT. Since ABI
 * 6. */
TWOFOUR_API int twofour_last_error_kind(void);
/* 1 if this library can run on CUDA on this machine, otherwise 0. */
TWOFOUR_API int twofour_has_cuda(void);
/* Frees a text that this library allocated. NULL is allowed. Since ABI 3. */
TWOFOUR_API void twofour_free(char* text);

/* Opens an artifact. Reads headers, config.json and twofour.json, but no weights. It is an error unless
 * `path` is an artifact in a layout. */
TWOFOUR_API int twofour_open(const char* path, twofour_artifact** artifact);
/* Closes an artifact. NULL is allowed. */
TWOFOUR_API void twofour_close(twofour_artifact* artifact);

/* The number of layers of an artifact. 0 for NULL. */
TWOFOUR_API int64_t twofour_layer_count(const twofour_artifact* artifact);
/* Describes layer `layer`, counted from 0. The caller sets `info->size`. */
TWOFOUR_API int twofour_get_layer_info(const twofour_artifact* artifact, int64_t layer,
                                       twofour_layer_info* info);
/* Finds a layer by its prefix ("model.layers.0.mlp.experts") or its number ("0"). It is an error unless
 * `name` stands for exactly one layer. */
TWOFOUR_API int twofour_find_layer(const twofour_artifact* artifact, const char* name, int64_t* layer);

/* Puts a layer on a device. On TWOFOUR_CPU, it computes from the mapped file. On TWOFOUR_CUDA, it is in the
 * memory of the current device, and on TWOFOUR_CUDA_DEVICE(index) in the memory of the given device. Every
 * stored byte is checked once. `options` may be NULL. */
TWOFOUR_API int twofour_load(const twofour_artifact* artifact, int64_t layer, int device,
                             const twofour_options* options, twofour_layer** loaded);
/* Frees a layer. No call may use it any more. NULL is allowed. */
TWOFOUR_API void twofour_unload(twofour_layer* layer);

/* A tensor of a layout: [experts, rows, cols], one byte per element. */
typedef struct {
  size_t size;        /* sizeof(twofour_part) */
  const char* suffix; /* end of the name of the tensor: "comp" in "P.w13_comp" */
  const char* dtype;  /* name of the type in safetensors: "U8", "F8_E4M3" */
  int64_t rows;       /* per expert */
  int64_t cols;       /* bytes of a row */
  int32_t parts;      /* number of parts of the layout */
} twofour_part;
/* Describes part `part`, counted from 0, of a matrix [experts, n, k] in a layout. `gated` is 1 for w13
 * that has rows of gate before rows of up. Since ABI 3. */
TWOFOUR_API int twofour_get_part(const char* layout, int64_t experts, int64_t n, int64_t k, int32_t gated,
                                 int32_t part, twofour_part* out);

/* The most parts of a layout. */
#define TWOFOUR_MOST_PARTS 4
/* A layer whose weights the caller has in memory of a device. w13 is [E, 2I or I, H], w2 is [E, H, I]. */
typedef struct {
  size_t size;                               /* sizeof(twofour_stored_layer) */
  const char* name;                          /* for messages */
  const char* layout;                        /* "v7" */
  int64_t experts;                           /* E */
  int64_t hidden;                            /* H */
  int64_t intermediate;                      /* I */
  int32_t gated;                             /* 1 for silu(gate) * up, 0 for relu(x)^2 */
  const void* w13_parts[TWOFOUR_MOST_PARTS]; /* indexed by part of the layout; the rest is NULL */
  const void* w2_parts[TWOFOUR_MOST_PARTS];  /* likewise */
  const float* w13_global_scale;             /* [E], multipliers */
  const float* w2_global_scale;              /* [E], multipliers */
} twofour_stored_layer;
/* Makes a layer over weights that the caller has in memory of the device. They must not change until
 * twofour_unload. Every stored byte is checked once. On CUDA, the bytes are copied to the host for this on
 * the default stream. Work that writes them on other streams must be complete. Since ABI 3. */
TWOFOUR_API int twofour_borrow(const twofour_stored_layer* stored, int device, const twofour_options* options,
                               twofour_layer** loaded);

/* The bytes of workspace for up to `m` tokens. 0 on the CPU. The workspace need not be cleared. Different
 * layers may use the same workspace one after the other, but never at the same time, because two such calls
 * may both hang. */
TWOFOUR_API int twofour_workspace_bytes(const twofour_layer* layer, int64_t m, int64_t top_k, size_t* bytes);

/* Runs the layer on memory of its device. `workspace` is aligned to 256 bytes. `stream` is a
 * cudaStream_t of the layer's device, which need not be the current device; NULL is the default stream.
 * The work is put on the stream. Nothing is allocated and nothing waits, so the call can be captured in a
 * graph. `topk_ids` must not change until the work is done. A single token may run as a cooperative
 * launch, which waits until the device has room for all of its blocks. A kernel that fills the device and
 * waits for this layer therefore waits forever. On the CPU, `stream` and `workspace` are not used, and all
 * work is done on return. */
TWOFOUR_API int twofour_forward(const twofour_layer* layer, const twofour_tokens* tokens, void* workspace,
                                size_t workspace_bytes, void* stream);

/* Runs the router of the layer in host memory, according to model_type and config.json. `hidden` is
 * float32 [m, H]. `topk_ids` and `topk_weights` are [m, top_k], the best expert first. */
TWOFOUR_API int twofour_route(const twofour_artifact* artifact, int64_t layer, const float* hidden, int64_t m,
                              int64_t top_k, int32_t* topk_ids, float* topk_weights);

/* A stack of matrices [experts, n, k] whose memory the caller owns. A linear is a stack with one expert.
 * Since ABI 3. */
typedef struct twofour_matrix twofour_matrix;
/* The memory of a stack of matrices. */
typedef struct {
  size_t size;        /* sizeof(twofour_stored_matrix) */
  const char* name;   /* for messages */
  const char* layout; /* "v7"; or "nvfp4", weight [E, N, K/2] and scale [E, N, K/16] as in checkpoints */
  int64_t experts;    /* E */
  int64_t n;          /* outputs */
  int64_t k;          /* inputs, a multiple of 16 */
  int32_t gated;      /* 1 if gate rows come before up rows, as in results; g8 interleaves stored rows */
  const void* parts[TWOFOUR_MOST_PARTS]; /* indexed by part of the layout; the rest is NULL */
  const float* global_scale;             /* [experts], multipliers */
} twofour_stored_matrix;
/* Makes a matrix over memory of the caller, like twofour_borrow. */
TWOFOUR_API int twofour_borrow_matrix(const twofour_stored_matrix* stored, int device,
                                      twofour_matrix** matrix);
/* Frees a matrix, but not the memory of the caller. NULL is allowed. */
TWOFOUR_API void twofour_release_matrix(twofour_matrix* matrix);
/* The bytes of workspace for `rows` rows. 0 on the CPU. */
TWOFOUR_API int twofour_multiply_bytes(const twofour_matrix* matrix, int64_t rows, size_t* bytes);
/* Computes out[r] = w[ids[r]] x[r]. `x` is [rows, k] and `out` is [rows, n], both of type `dtype`. `ids`
 * is [rows]. On CUDA, an id out of range leaves its row of `out` unchanged. Otherwise it works like
 * twofour_forward. */
TWOFOUR_API int twofour_multiply(const twofour_matrix* matrix, int64_t rows, int32_t dtype, const void* x,
                                 const int32_t* ids, void* out, void* workspace, size_t workspace_bytes,
                                 void* stream);

/* A checkpoint or artifact in any dialect, layout or number format, open for reading. Since ABI 3. */
typedef struct twofour_checkpoint twofour_checkpoint;

/* Opens a directory or a single safetensors file. Reads headers and configs. */
TWOFOUR_API int twofour_open_checkpoint(const char* path, twofour_checkpoint** checkpoint);
/* Opens a checkpoint with a setting for zero points of INT4 that contradict the config: "stored",
 * "symmetric" or "v2", as in --zero-points. With "", such a module is not read, which is an error. Since
 * ABI 5. */
TWOFOUR_API int twofour_open_checkpoint_with(const char* path, const char* zero_points,
                                             twofour_checkpoint** checkpoint);
/* Closes a checkpoint. No call may use it any more. NULL is allowed. */
TWOFOUR_API void twofour_close_checkpoint(twofour_checkpoint* checkpoint);
/* The content of a checkpoint as JSON, which the caller frees by twofour_free(). "what" describes it in
 * words. "tensors" are the tensors in its files (name, dtype, shape, bytes, file). "modules" (name,
 * format, shape, bytes, tensors) are the source's modules if it is an artifact in a layout. "matrices"
 * (name, module, shape) are parts of stacks that can be read by a separate name. */
TWOFOUR_API int twofour_list(const twofour_checkpoint* checkpoint, char** json);
/* Reads values as float32, in row-major order: the weights of a module or matrix, or the elements of a
 * tensor. There is one range [begin, end) per dimension. `count` is the number of values in the ranges. */
TWOFOUR_API int twofour_read_values(const twofour_checkpoint* checkpoint, const char* name, int32_t dims,
                                    const int64_t* begin, const int64_t* end, float* values, uint64_t count);
/* Reads bytes of a tensor as they are stored, from byte `offset` of the tensor on. */
TWOFOUR_API int twofour_read_bytes(const twofour_checkpoint* checkpoint, const char* tensor, uint64_t offset,
                                   void* to, uint64_t bytes);

/* A whole model. It runs in float32 from the weights that its directory stores. lib/run/decoder/README.md
 * lists the supported models, and describes how they run on CUDA. Since ABI 3. */
typedef struct twofour_model twofour_model;
/* The tokens that a model has seen so far. */
typedef struct twofour_sequence twofour_sequence;

/* The sizes of a model. */
typedef struct {
  size_t size;        /* sizeof(twofour_model_info) */
  int64_t layers;     /* number of layers */
  int64_t hidden;     /* H */
  int64_t vocabulary; /* number of logits per token */
} twofour_model_info;

/* Opens a model on the CPU. */
TWOFOUR_API int twofour_open_model(const char* path, twofour_model** model);
/* Opens a model on TWOFOUR_CPU, TWOFOUR_CUDA (the current device) or TWOFOUR_CUDA_DEVICE(index). A CUDA
 * device has the weights as they are stored. If they do not fit, they are loaded layer by layer. Tokens
 * and logits are in host memory. If several threads run a model on CUDA, their calls take turns. Since ABI
 * 4. */
TWOFOUR_API int twofour_open_model_on(const char* path, int device, twofour_model** model);
/* Opens a model on a device with a setting for zero points, as in twofour_open_checkpoint_with. Since ABI
 * 5. */
TWOFOUR_API int twofour_open_model_with(const char* path, int device, const char* zero_points,
                                        twofour_model** model);
/* Closes a model. Its sequences must be ended. NULL is allowed. */
TWOFOUR_API void twofour_close_model(twofour_model* model);
/* Describes a model. The caller sets `info->size`. */
TWOFOUR_API int twofour_get_model_info(const twofour_model* model, twofour_model_info* info);
/* Begins an empty sequence. The model must stay open as long as the sequence exists. Only one thread at a
 * time may use a sequence. */
TWOFOUR_API int twofour_begin_sequence(const twofour_model* model, twofour_sequence** sequence);
/* Ends a sequence and frees its memory. NULL is allowed. */
TWOFOUR_API void twofour_end_sequence(twofour_sequence* sequence);
/* Appends tokens [count], at least one. If `all` is not 0, `logits` is [count, vocabulary]. Otherwise it is
 * [vocabulary], for the last token. A token outside of the vocabulary, or beyond the positions of the model,
 * is an error and leaves the sequence as it was. */
TWOFOUR_API int twofour_append(twofour_sequence* sequence, const int32_t* tokens, int64_t count, int32_t all,
                               float* logits);

/* The tokenizer of a model. Several threads may use it at the same time. Since ABI 6. */
typedef struct twofour_tokenizer twofour_tokenizer;
/* Opens a tokenizer.json, or that of a directory. The model is byte pair encoding; others are an error. Since
 * ABI 6. */
TWOFOUR_API int twofour_open_tokenizer(const char* path, twofour_tokenizer** tokenizer);
/* Closes a tokenizer. NULL is allowed. Since ABI 6. */
TWOFOUR_API void twofour_close_tokenizer(twofour_tokenizer* tokenizer);
/* One more than the largest id. 0 for NULL. Since ABI 6. */
TWOFOUR_API int64_t twofour_vocabulary_size(const twofour_tokenizer* tokenizer);
/* Encodes `bytes` bytes of UTF-8. If `add_special` is not 0, the ids include those that the file puts around
 * a text. Writes the first `room` ids and sets `count` to the number of all; `ids` may be NULL if `room` is
 * 0. Bytes that are not UTF-8 are an error. Since ABI 6. */
TWOFOUR_API int twofour_encode(const twofour_tokenizer* tokenizer, const char* text, uint64_t bytes,
                               int32_t add_special, int32_t* ids, int64_t room, int64_t* count);
/* Decodes ids [count] to UTF-8, which the caller frees by twofour_free(). Special tokens are left out if
 * `skip_special` is not 0, and ids without a token always. `bytes`, which may be NULL, is its size, since a
 * text may hold NUL. Since ABI 6. */
TWOFOUR_API int twofour_decode(const twofour_tokenizer* tokenizer, const int32_t* ids, int64_t count,
                               int32_t skip_special, char** text, uint64_t* bytes);
/* The text of a token as the file has it, not decoded, which the caller frees by twofour_free(). It is empty
 * if no token has the id. `bytes` is its size and may be NULL. Since ABI 6. */
TWOFOUR_API int twofour_token(const twofour_tokenizer* tokenizer, int32_t id, char** text, uint64_t* bytes);
/* Finds the id of a token by its text as the file has it; -1 if there is none. Since ABI 6. */
TWOFOUR_API int twofour_find_token(const twofour_tokenizer* tokenizer, const char* token, int32_t* id);

/* Chooses an option for each of `units` units, so that the sum of costs is at most `limit` and the sum of
 * losses is least, as compress --bits chooses formats. Unit u has counts[u] options. Their costs and losses
 * follow those of the units before. chosen[u] becomes the index of its option, from 0. A limit below the
 * least sum is an error. Since ABI 6. */
TWOFOUR_API int twofour_choose_formats(int64_t units, const int64_t* counts, const uint64_t* costs,
                                       const double* losses, uint64_t limit, int64_t* chosen);

/* Reports the progress of a command: `done` of `total` bytes. Returns 0 to continue, any other number to
 * stop the command. */
typedef int (*twofour_progress)(void* user, const char* phase, uint64_t done, uint64_t total);
/* Runs a command of the program without starting a process. `words` are its name and arguments, as in
 * tools/README.md. Nothing is printed. `progress` may be NULL. Otherwise it is called on this thread
 * before the command, about 20 times a second during it, and after it. It must not call a command. `code`
 * is the exit code of the program: 0, 1 (findings or differences), 2, or 130 (stopped by `progress`). If
 * it is 0 or 1, the function returns TWOFOUR_OK, and `json` is the document that tools/JSON.md describes,
 * which the caller frees by twofour_free(). Only one command runs at a time. Others wait. Stopping a
 * command also stops twofour_load and twofour_append on other threads. Since ABI 3. */
TWOFOUR_API int twofour_command(int32_t count, const char* const* words, twofour_progress progress,
                                void* user, int32_t* code, char** json);

#ifdef __cplusplus
}
#endif

#endif
