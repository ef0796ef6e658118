#include "lib/lint/rules/rules.h"

namespace twofour {
namespace {

constexpr Severity kNote = Severity::kNote, kWarning = Severity::kWarning, kError = Severity::kError;

constexpr const char* kContainer = "https://github.com/safetensors/safetensors#format";
constexpr const char* kModelOpt2427 = "https://github.com/NVIDIA/Model-Optimizer/pull/2427";

// clang-format off
constexpr LintRule kRules[] = {
    // Files
    {"unfinished-output", kError, "twofour was interrupted while writing this directory: files are missing or half written.",
     "Finish it with --resume, or write it again.", ""},
    {"unreadable-file", kError, "A file cannot be opened, or something else is in its place.",
     "Check its permissions and where its link points.", ""},
    {"dangling-link", kNote, "A link beside the weights leads to nothing; conversions leave it behind.",
     "Copy the file that it should lead to, or remove the link.", ""},
    {"bad-header", kError, "A weight file has no valid safetensors header; nothing in it can be loaded.",
     "Download or write the file again.", kContainer},
    {"file-size", kError, "A weight file is shorter or longer than its header says; readers that map it see zeros or refuse it.",
     "Download or copy the file again and compare its size with the origin's.", "https://github.com/osaurus-ai/vmlx-swift/pull/217"},
    {"data-holes", kError, "Data offsets leave a hole, overlap, or do not fit a tensor's type and shape; strict readers refuse the file.",
     "Write the file again with a writer of the safetensors project, or with twofour.", kContainer},
    {"no-format", kError, "__metadata__ lacks \"format\": \"pt\"; transformers refuses the file.",
     "Add format: pt to __metadata__, or drop __metadata__.", "https://github.com/ml-explore/mlx/issues/743"},
    {"duplicate-tensor", kError, "Two files hold a tensor of one name; which of them is loaded depends on the engine.",
     "Remove the file that is left over from another save.", "https://github.com/mflux-community/mflux/pull/603"},
    {"leftover-file", kWarning, "A weight file belongs to no save, or to another one; engines that load every file take it in.",
     "Delete it, or name it in the index.", "https://github.com/mflux-community/mflux/pull/603"},
    {"missing-shard", kError, "A weight file that the index or the numbering names is missing; its weights stay uninitialized or the load fails.",
     "Download the missing file, or use the index that belongs to these files.", "https://github.com/sgl-project/sglang/pull/32279"},
    // Index
    {"bad-index", kError, "The index cannot be used, at least not from Python.", "Write it again from the files' headers.", ""},
    {"no-index", kWarning, "Several weight files have no index; transformers does not load them.",
     "Write model.safetensors.index.json from the files' headers.", ""},
    {"index-stale-tensor", kError, "The index names a tensor that no file holds; loading by the index fails.",
     "Use the index that belongs to these files, not the source's.", "https://github.com/Blaizzy/mlx-vlm/issues/624"},
    {"index-wrong-file", kError, "The index puts a tensor into another file than the one that holds it.",
     "Write the index again from the files' headers.", "https://github.com/Blaizzy/mlx-vlm/pull/1827"},
    {"index-incomplete", kWarning, "Tensors of the named files are not in the index; engines that load by it skip them, scales above all.",
     "Add them to weight_map.", kModelOpt2427},
    {"index-total-size", kWarning, "metadata.total_size is not the sum of the tensors' bytes; memory is planned by it.",
     "Set it to that sum.", "https://github.com/exo-explore/exo/pull/1956"},
    // Modules
    {"incomplete-module", kError, "A quantized module lacks its codes, block scales or global scale; missing scales are loaded as zeros.",
     "Export the module again; do not drop what belongs to it.", "https://github.com/vllm-project/vllm/pull/54444"},
    {"module-shape", kError, "Tensors of one module disagree in type or shape, or with what the config says of them.",
     "Export the module again.", "https://github.com/NVIDIA/Model-Optimizer/pull/2038"},
    {"unsupported-format", kWarning, "Weights are in a format that twofour does not read: other commands refuse it or leave it unread, and no rule looks at its values.",
     "Serve it with an engine that knows it, or export the module in another format.", ""},
    {"two-weights", kError, "A module has both .weight and .weight_packed; which of them counts depends on the engine.",
     "Remove the one that is left over from before it was quantized, or from another dialect.", ""},
    {"gate-up-shape", kError, "Gate and up differ in shape or type; no engine can fuse them.",
     "Export both in one format.", ""},
    {"experts-missing", kError, "Experts, or matrices of one, are missing; their weights stay uninitialized.",
     "Export them, too; compare with the source's names.", "https://github.com/sgl-project/sglang/issues/34448"},
    {"experts-extra", kError, "There are more experts than config.json says.",
     "Correct the count in config.json, or remove the files of another save.", ""},
    {"expert-name", kError, "An expert's number has leading zeros: it counts as no expert, or as a second one of that number.",
     "Rename its tensors, or remove them if they are left over.", ""},
    {"expert-shape", kError, "An expert differs from the others of its layer in shape or type; it fits into no fused tensor.",
     "Export all experts of a layer in one format.", ""},
    {"gate-up-order", kError, "It is not certain whether rows of gate and up in a stack of experts are interleaved or halves; read the wrong way, all of them are scrambled.",
     "Set model_type in config.json to what the model is; restore gate_up_proj_bias where it was lost.", ""},
    {"weight-term", kWarning, "A tensor or the config changes what weights mean: input scales before a linear, zero points, another order of groups, low ranks, adapters, Hadamard transforms. Engines that do not know it compute something else, and twofour converts no such weights.",
     "Merge or undo it with the producer's tools, or serve with an engine that knows it.", ""},
    {"layers-missing", kError, "Layers that config.json promises have no tensors.",
     "Export them, too; compare with the source's names.", ""},
    {"mtp-missing", kWarning, "config.json promises layers for multi-token prediction and the files hold none; speculative decoding fails.",
     "Copy the source's MTP tensors, or set the count in config.json to 0.", kModelOpt2427},
    {"head-missing", kError, "The output head, or the embedding that it is tied to, has no tensor.",
     "Copy the source's lm_head, or correct tie_word_embeddings.", ""},
    {"tied-head", kNote, "config.json ties the head to the embedding, and a head is stored, too; engines ignore it.",
     "Nothing, if both are equal.", ""},
    // Config
    {"no-config", kWarning, "There is no config.json; no engine knows the model.", "Copy the source's config.json.",
     ""},
    {"bad-config", kError, "A config file is not JSON as Python reads it, or it or something in it has another type than readers expect.", "Restore it from the source.", ""},
    {"duplicate-key", kError, "A JSON object has a key twice; which of them counts depends on the reader, and safetensors and the index are refused.",
     "Remove the one that is not meant.", ""},
    {"odd-setting", kError, "A count in config.json is not a whole number, or a switch neither true nor false; readers take it for something else or fail.",
     "Write the number or the switch as the source has it.", ""},
    {"no-quantization-config", kError, "Weights are quantized and no config says so; engines read codes as weights or refuse them.",
     "Write quantization_config into config.json, or hf_quant_config.json.", ""},
    {"config-disagrees", kWarning, "config.json, hf_quant_config.json and, of GPTQ and AWQ, quantize_config.json or quant_config.json say different things, or one describes weights that are not there; which counts depends on the engine.",
     "Make all say what is stored, or remove what is of another save.", ""},
    {"config-dtype", kError, "A module is stored in another format than the config says; it is read wrongly or refused.",
     "Correct ignore, exclude_modules or quantized_layers, or export the module as they say.", "https://github.com/NVIDIA/Model-Optimizer/issues/868"},
    {"engine-lookup", kWarning, "By an engine's own rules of names and patterns the config says another format of a module than it has, or the engine stops at the config.",
     "Name modules as they are called in the files, in the lists and patterns that the engine reads; see formats/README.md.", "https://github.com/vllm-project/vllm/issues/55496"},
    {"engine-limit", kNote, "An engine has no loader for a format of this config, whatever the config says.",
     "Serve it with another engine, or convert what it cannot load.", "https://github.com/sgl-project/sglang/pull/38726"},
    {"config-group-size", kError, "A config states another group size than NVFP4 weights have; engines refuse them or apply scales to the wrong weights.",
     "Set group_size to 16.", ""},
    {"unquantized-not-ignored", kWarning, "A linear is stored unquantized and no ignore pattern says so; loaders that believe the config refuse it.",
     "Add it to ignore or exclude_modules, under its name in the files.", "https://github.com/NVIDIA/Model-Optimizer/pull/1858"},
    {"unused-pattern", kWarning, "A pattern in the config matches no module: a wrong name prefix, or a typing error.",
     "Write it as the modules are called in the files, or remove it.", "https://github.com/vllm-project/vllm/issues/54547"},
    {"unreadable-pattern", kWarning, "A pattern in the config is no regular expression; what it is to match is not known, and unquantized-not-ignored is not looked for.",
     "Correct it.", ""},
    {"python-only-pattern", kNote, "A pattern in the config is a regular expression that only Python knows, or too long for us; what it matches is not known, and unquantized-not-ignored is not looked for.",
     "Nothing, or write it in at most 4,096 bytes and 256 groups, without look-behind, named groups, \\A, \\Z, references to groups, inline flags, classes that begin with ] or have [:, possessive repetitions, and braces that are no count; a leading (?i) is understood.", ""},
    {"quantized-router", kWarning, "A router is quantized; its small errors send tokens to other experts, and engines expect it unquantized.",
     "Leave routers in BF16.", "https://github.com/NVIDIA/Model-Optimizer/pull/1858"},
    {"quantized-head", kNote, "The output head is quantized; some engines expect it unquantized.",
     "Check that your engine supports it; otherwise leave it in BF16.", "https://github.com/vllm-project/vllm/pull/45132"},
    {"missing-input-scale", kError, "A module lacks the input scale that the config or its neighbours promise; engines load zeros, and NaN comes out.",
     "Calibrate again with tokens for every expert, or declare the checkpoint weight-only.", "https://github.com/vllm-project/vllm/issues/45212"},
    // Auxiliary files
    {"missing-sidecar", kWarning, "A file that a config names is missing.", "Copy it from the source.",
     "https://github.com/NVIDIA/Model-Optimizer/pull/2060"},
    {"no-tokenizer", kNote, "There is no tokenizer.", "Copy the source's, if the checkpoint is to be served.",
     "https://github.com/NVIDIA/Model-Optimizer/pull/2060"},
    {"two-chat-templates", kWarning, "tokenizer_config.json and chat_template.jinja hold different chat templates; which counts depends on the engine.",
     "Keep one.", "https://github.com/NVIDIA/Model-Optimizer/pull/2060"},
    // Scales that are one number
    {"unequal-global-scales", kError, "Gate and up (or q, k and v) have different global scales; engines take one for all and scale the rest wrongly.",
     "twofour convert folds them; or export again with the producer's fusion on.", "https://github.com/vllm-project/vllm/issues/54974"},
    {"unequal-input-scales", kNote, "Gate and up (or q, k and v) have different input scales; engines take the larger, at some loss.",
     "Calibrate them together.", ""},
    {"bad-global-scale", kError, "A global scale is NaN, infinite, zero or negative; every weight that it scales is lost.",
     "Export the module again.", "https://github.com/vllm-project/vllm/pull/54444"},
    {"bad-input-scale", kError, "An input or KV scale is NaN, infinite, zero or negative, as of an expert that calibration never reached.",
     "Calibrate with tokens for every expert, or give it the scale of its neighbours.", "https://github.com/vllm-project/compressed-tensors/pull/595"},
    {"suspicious-scale", kWarning, "A scale implies values that no model has: uninitialized memory, or a divisor stored as a multiplier.",
     "Compare with the source; check multiply against divide.", "https://github.com/vllm-project/vllm/pull/45320"},
    // Weights
    {"bad-block-scale", kError, "Block scales are NaN (0x7F, 0xFF in E4M3) or negative; the weights that share them become NaN or change sign.",
     "Export again with a producer that clamps block scales to 448.", "https://github.com/NVIDIA/Model-Optimizer/issues/1633"},
    {"zero-scale", kWarning, "Blocks with codes other than zero have scale 0: their weights vanished.",
     "Export again with a producer that clamps block scales to 2^-9 or more.", ""},
    {"saturated-scales", kWarning, "Far more blocks have scale 448 than can hold the tensor's maximum: the global scale is too small and weights were cut off.",
     "Export again with the global scale from the tensor's own maximum.", ""},
    {"subnormal-scales", kWarning, "All block scales are subnormal: the global scale is far too large, and most of their precision is lost.",
     "Export again with the global scale from the tensor's own maximum.", ""},
    {"amax-mismatch", kWarning, "The largest weight is far below the one that the global scale was made for.",
     "Export again with the global scale from the weights as they are now.", ""},
    {"zero-weights", kWarning, "A matrix is all zero: a dead expert, or memory that was never filled.",
     "Compare with the source.", ""},
    {"not-finite", kError, "A tensor holds NaN or infinity.", "Compare with the source; export again.",
     "https://github.com/ikawrakow/ik_llama.cpp/issues/649"},
    {"mxfp4-nan-scale", kError, "An E8M0 scale is 0xFF, which is NaN; its thirty-two weights become NaN.",
     "Export the module again.", "https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf"},
    {"not-2-4", kError, "The checkpoint says that it is pruned, and groups have more non-zero codes than the pattern allows.",
     "Prune again; something wrote to the weights since.", "https://github.com/neuralmagic/nm-vllm/pull/55"},
    // Artifacts
    {"no-manifest", kError, "An artifact has lost twofour.json, which says what its tensors were made from; nothing reads it without.",
     "Copy twofour.json from its origin, or write the artifact again.", ""},
    {"unknown-layout", kError, "A file of an artifact names a layout that this version does not know; it reads neither its weights nor what they were made from.",
     "Use the version of twofour that wrote the artifact, or a newer one.", ""},
    {"bad-manifest", kError, "twofour.json cannot be read.", "Write the artifact again.", ""},
    {"manifest-hash", kError, "A file or tensor is not what twofour.json says.", "Write the artifact again, or take it from its origin again.",
     ""},
    {"meta-nibbles", kError, "2:4 metadata is illegal: of two positions the first must be the lower; the hardware leaves the rest undefined.",
     "Write the artifact again.", "https://docs.nvidia.com/cuda/parallel-thread-execution/"},
    {"scale-copies", kError, "Two copies of a block scale differ.", "Write the artifact again.", ""},
    {"padding", kError, "Padding is not zero.", "Write the artifact again.", "https://docs.nvidia.com/cuda/cublas/"},
    {"folded", kNote, "Unequal global scales of gate and up were folded to the larger, at the loss that twofour.json states.",
     "Calibrate gate and up together to avoid it.", "https://github.com/vllm-project/vllm/issues/54974"},
    // Beside another checkpoint
    {"nibble-swap", kError, "Weights fit the other checkpoint only with the two codes of each byte exchanged.",
     "Swap the nibbles: the even k belongs in the low one.", "https://github.com/sgl-project/sglang/pull/23625"},
    {"gate-up-swap", kError, "Weights fit the other checkpoint only with gate and up exchanged.",
     "Exchange them: gate rows come first.", "https://github.com/sgl-project/sglang/pull/32430"},
};
// clang-format on

}  // namespace

std::span<const LintRule> lint_rules() { return kRules; }

std::optional<size_t> find_lint_rule(std::string_view id) {
  for (size_t i = 0; i < std::size(kRules); ++i) {
    if (id == kRules[i].id) return i;
  }
  return std::nullopt;
}

}  // namespace twofour
