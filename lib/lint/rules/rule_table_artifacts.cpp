#include "lib/lint/rules/rule_tables.h"

namespace twofour {

std::span<const LintRule> artifact_rules() {
  using enum Severity;
  // clang-format off
  static constexpr LintRule kArtifactRules[] = {
    // Artifacts
    {"no-manifest", kError, "An artifact has lost twofour.json, which says what its tensors were made from.",
     "Copy twofour.json from its origin, or write the artifact again.", "",
     "No command reads the artifact without it."},
    {"unknown-layout", kError, "A file of an artifact names a layout that this version does not know.",
     "Use the version of twofour that wrote the artifact, or a newer one.", "",
     "It reads neither the weights nor what they were made from."},
    {"bad-manifest", kError, "twofour.json cannot be read.",
     "Write the artifact again.", "",
     "What the tensors were made from is not known, and no hash can be checked."},
    {"manifest-hash", kError, "A file or tensor is not what twofour.json says.",
     "Write the artifact again, or take it from its origin again.", "",
     "It changed since it was written, and what was proven then is not proven of it."},
    {"meta-nibbles", kError, "2:4 metadata is illegal: of two positions the first must be the lower.",
     "Write the artifact again.", "https://docs.nvidia.com/cuda/parallel-thread-execution/",
     "What sparse tensor cores compute from it is not defined."},
    {"scale-copies", kError, "Two copies of a block scale differ.",
     "Write the artifact again.", "",
     "Half of the weights that share it are scaled wrongly."},
    {"padding", kError, "Padding is not zero.",
     "Write the artifact again.", "https://docs.nvidia.com/cuda/cublas/",
     "Kernels that read whole tiles add it to their sums."},
    {"folded", kNote, "Unequal global scales of gate and up were folded to the larger.",
     "Calibrate gate and up together to avoid it.", "https://github.com/vllm-project/vllm/issues/54974",
     "Block scales were rounded for it, at the loss that twofour.json states."},
    // Beside another checkpoint
    {"nibble-swap", kError, "Weights fit the other checkpoint only with the two codes of each byte exchanged.",
     "Swap the nibbles: the even k belongs in the low one.", "https://github.com/sgl-project/sglang/pull/23625",
     "Every weight is multiplied by its neighbour's input."},
    {"gate-up-swap", kError, "Weights fit the other checkpoint only with gate and up exchanged.",
     "Exchange them: gate rows come first.", "https://github.com/sgl-project/sglang/pull/32430",
     "The activation is applied to the wrong half, and the MLP computes something else."},
    {"other-config", kError, "A key that changes what a model computes differs from the other checkpoint's config: rope, eps, top-k, factors, windows, activations, counts.",
     "Take the value of the checkpoint that the model was trained with.", "https://huggingface.co/docs/transformers/main_classes/configuration",
     "The same weights give other outputs, and nothing else shows it."},
    {"other-config-key", kNote, "A key that changes no output differs from the other checkpoint's config.",
     "Nothing, if it was meant.", "https://huggingface.co/docs/transformers/main_classes/configuration",
     "Loading, labels or training may differ."},
    {"moved-weights", kError, "Weights are those that the other checkpoint has elsewhere: experts, layers or matrices are exchanged.",
     "Give them back the names that they have there, or load the router and the order of layers that belong to them.", "",
     "The router sends tokens to experts that were trained for others, and layers run in another order."},
    {"other-weights", kWarning, "Weights are not those of the other checkpoint: another's, or larger or smaller by a factor.",
     "Take them from where they belong, or compare with a checkpoint of the same training.", "",
     "A matrix of another model, or of another size, makes every layer behind it compute with noise."},
    {"moved-rows", kError, "Rows or columns of a matrix are in another order than in the other checkpoint.",
     "Write them in its order; check what was reshaped or transposed.", "",
     "Each output or input is taken for another one: heads, channels, halves."},
    {"turned-signs", kError, "Weights have the opposite sign of those in the other checkpoint.",
     "Compare codes with the source: bit 3 of E2M1 is the sign.", "",
     "What they compute is subtracted where it is to be added."},
    {"renumbered-experts", kNote, "Experts have other numbers than in the other checkpoint, and the rows of the router with them.",
     "Nothing, unless something else is stored by number: biases of the choice, statistics, adapters.", "",
     "The model computes what it did."},
    // Runs before this one
    {"baseline-stale", kNote, "The baseline has a finding that is found no more.",
     "Write the baseline again with --write-baseline.", "",
     "If the fault comes back, nobody is told."},
  };
  // clang-format on
  return kArtifactRules;
}

}  // namespace twofour
