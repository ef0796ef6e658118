#include "lib/lint/rules/rule_tables.h"

namespace twofour {

std::span<const LintRule> artifact_rules() {
  using enum Severity;
  // clang-format off
  static constexpr LintRule kArtifactRules[] = {
    // Artifacts
    {"no-manifest", kError, "An artifact lacks twofour.json, which records the sources of its tensors.",
     "Copy twofour.json from its origin, or write the artifact again.", "",
     "No command reads the artifact without it."},
    {"unknown-layout", kError, "A file of an artifact names a layout that this version does not know.",
     "Use the version of twofour that wrote the artifact, or a newer one.", "",
     "This version reads neither the weights nor the record of their sources."},
    {"bad-manifest", kError, "twofour.json cannot be read.",
     "Write the artifact again.", "",
     "The sources of the tensors are unknown, and no hash can be checked."},
    {"manifest-hash", kError, "A file or tensor differs from its entry in twofour.json.",
     "Write the artifact again, or take it from its origin again.", "",
     "It changed after it was written, and earlier proofs do not hold for it."},
    {"meta-nibbles", kError, "2:4 metadata is illegal: of two positions the first must be the lower.",
     "Write the artifact again.", "https://docs.nvidia.com/cuda/parallel-thread-execution/",
     "The outputs of sparse tensor cores are undefined."},
    {"scale-copies", kError, "Two copies of a block scale differ.",
     "Write the artifact again.", "",
     "Half of the weights that share it are scaled wrongly."},
    {"padding", kError, "Padding is not zero.",
     "Write the artifact again.", "https://docs.nvidia.com/cuda/cublas/",
     "Kernels that read whole tiles add it to their sums."},
    {"folded", kNote, "Unequal global scales of gate and up were folded to the larger.",
     "Calibrate gate and up together to avoid it.", "https://github.com/vllm-project/vllm/issues/54974",
     "Folding rounded block scales; twofour.json states the loss."},
    // Beside another checkpoint
    {"nibble-swap", kError, "Weights fit the other checkpoint only with the two codes of each byte exchanged.",
     "Swap the nibbles: the even k belongs in the low one.", "https://github.com/sgl-project/sglang/pull/23625",
     "Every weight is multiplied by its neighbour's input."},
    {"gate-up-swap", kError, "Weights fit the other checkpoint only with gate and up exchanged.",
     "Exchange them: gate rows come first.", "https://github.com/sgl-project/sglang/pull/32430",
     "The activation is applied to the wrong half, and the MLP's outputs are wrong."},
    {"other-config", kError, "A key that changes what a model computes differs from the other checkpoint's config: rope, eps, top-k, factors, windows, activations, counts.",
     "Take the value of the checkpoint that the model was trained with.", "https://huggingface.co/docs/transformers/main_classes/configuration",
     "The same weights give other outputs, without any other sign."},
    {"other-config-key", kNote, "A key that changes no output differs from the other checkpoint's config.",
     "Nothing, if it was meant.", "https://huggingface.co/docs/transformers/main_classes/configuration",
     "Loading, labels or training may differ."},
    {"moved-weights", kError, "Weights are those of another place in the other checkpoint: experts, layers or matrices are exchanged.",
     "Rename them as in the other checkpoint, or load the router and the order of layers that belong to them.", "",
     "The router sends tokens to experts that were trained for others, and layers run in another order."},
    {"other-weights", kWarning, "Weights differ from the other checkpoint's: they are of a third checkpoint, or larger or smaller by a factor.",
     "Copy them from the right checkpoint, or compare with a checkpoint of the same training.", "",
     "With a matrix of another model or another scale, every later layer computes with noise."},
    {"moved-rows", kError, "Rows or columns of a matrix are in another order than in the other checkpoint.",
     "Write them in its order; check what was reshaped or transposed.", "",
     "Outputs or inputs are exchanged: heads, channels, halves."},
    {"turned-signs", kError, "Weights have the opposite sign of those in the other checkpoint.",
     "Compare codes with the source: bit 3 of E2M1 is the sign.", "",
     "Their outputs are subtracted instead of added."},
    {"renumbered-experts", kNote, "Experts have other numbers than in the other checkpoint, and the rows of the router with them.",
     "Nothing, unless something else is stored by number: biases of the choice, statistics, adapters.", "",
     "The model computes the same outputs."},
    // Runs before this one
    {"baseline-stale", kNote, "The baseline has a finding that does not occur any more.",
     "Write the baseline again with --write-baseline.", "",
     "If the fault comes back, lint does not report it."},
  };
  // clang-format on
  return kArtifactRules;
}

}  // namespace twofour
