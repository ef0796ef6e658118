#include "tools/commands.h"

namespace twofour {
namespace {

constexpr Command kCommands[] = {
    {"inspect", "Show what a checkpoint or artifact holds", setup_inspect, "inspect checkpoint --stats"},
    {"lint", "Find known faults in a checkpoint or artifact", setup_lint,
     "lint checkpoint --html report.html", true},
    {"prune", "Prune a checkpoint to 2:4 or 4:8-paired, in its own dialect", setup_prune,
     "prune checkpoint pruned --pattern 2:4", false, CudaWork::kSolvers},
    {"quantize", "Quantize BF16, FP16, FP32, FP8 or MXFP4 weights to NVFP4", setup_quantize,
     "quantize bf16-checkpoint nvfp4-checkpoint --block-scale four-over-six", false, CudaWork::kSolvers},
    {"convert", "Convert a checkpoint to a layout that kernels read", setup_convert,
     "convert checkpoint artifact --to v7", false, CudaWork::kSolvers},
    {"compress", "Collect statistics with a text, choose weights by them and write them, layer by layer",
     setup_compress, "compress model artifact --text book.txt --to v7", false, CudaWork::kAll},
    {"graft", "Take modules of another checkpoint into a checkpoint: draft layers, an embedding, a layer",
     setup_graft, "graft checkpoint donor grafted --take mtp"},
    {"drop", "Drop modules or experts of a checkpoint, all other bytes as they are", setup_drop,
     "drop checkpoint smaller --experts 96 --by saliency.safetensors"},
    {"repair", "Mend what lint finds in a checkpoint, and copy every other byte", setup_repair,
     "repair checkpoint mended --donor original"},
    {"plan", "Plan a conversion that several tasks or machines share", setup_plan,
     "plan checkpoint artifact --to v7 --tasks 16 -o plan.json"},
    {"recipes", "List or print the recipes that --recipe knows by name", setup_recipes,
     "recipes nvfp4-experts"},
    {"stats",
     "Collect, check, merge or import statistics of inputs, by which quantize --stats chooses weights",
     setup_stats, "stats check stats.safetensors checkpoint", true, CudaWork::kAll},
    {"merge", "Complete the artifact that the tasks of a plan wrote", setup_merge, "merge artifact"},
    {"diff", "Compare two checkpoints or artifacts as numbers, across dialects and layouts", setup_diff,
     "diff checkpoint artifact --tolerance 0.001", true},
    {"validate", "Prove an artifact, from its source or by its own hashes", setup_validate,
     "validate artifact --source checkpoint", true, CudaWork::kAll},
    {"run", "Run an MoE layer of an artifact on given tokens", setup_run,
     "run artifact --layer 0 --random 8 --seed 1 -o output.safetensors", false, CudaWork::kAll},
    {"eval", "Measure how well a whole model predicts tokens, and how far it is from another", setup_eval,
     "eval artifact --tokens tokens.safetensors --against checkpoint", false, CudaWork::kAll},
    {"generate", "Continue a text with a whole model, greedily", setup_generate,
     "generate artifact --prompt 'Once upon a time' --against checkpoint", false, CudaWork::kAll},
    {"card", "Write the model card of an artifact: recipe, figures, hashes, how to load it", setup_card,
     "card artifact --base-model org/model > card.md"},
    {"synth", "Make a checkpoint with the shapes of a known model", setup_synth,
     "synth checkpoint --shape qwen3-next --layers 1 --experts 16"},
    {"completion", "Write the script that completes command lines in a shell", setup_completion,
     "completion bash > ~/.local/share/bash-completion/completions/twofour"},
    {"man", "Write the manual pages", setup_man, "man ~/.local/share/man/man1"},
    {"help", "Show the help of the program or of a command", setup_help, "help convert"},
};

constexpr const char* kFooter =
    "Exit codes: 0 done, 1 findings or differences (lint, repair, diff, validate), 2 trouble, 130 "
    "interrupted.\n"
    "TWOFOUR_ISA=portable|avx2|avx512|neon forces the kernels of an instruction set.";

}  // namespace

Program twofour_program() {
  return {"twofour", "Convert NVFP4 checkpoints to layouts that kernels read, and prove the result",
          kCommands, kFooter};
}

}  // namespace twofour
