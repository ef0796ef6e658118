#include "tools/commands.h"

namespace twofour {
namespace {

constexpr Command kCommands[] = {
    {"inspect", "Show what a checkpoint or artifact holds", setup_inspect, "inspect checkpoint --stats"},
    {"lint", "Find known faults in a checkpoint or artifact", setup_lint,
     "lint checkpoint --html report.html", true},
    {"diff", "Compare two checkpoints or artifacts as numbers, across dialects and layouts", setup_diff,
     "diff checkpoint artifact --tolerance 0.001", true},
    {"convert", "Convert a checkpoint to a layout that kernels read", setup_convert,
     "convert checkpoint artifact --to v7", false, CudaWork::kSolvers},
    {"quantize", "Quantize BF16, FP16, FP32, FP8 or MXFP4 weights to NVFP4", setup_quantize,
     "quantize bf16-checkpoint nvfp4-checkpoint --block-scale four-over-six", false, CudaWork::kSolvers},
    {"prune", "Prune a checkpoint to 2:4 or 4:8-paired, in its own dialect", setup_prune,
     "prune checkpoint pruned --pattern 2:4", false, CudaWork::kSolvers},
    {"compress", "Collect statistics with a text, choose weights by them and write them, layer by layer",
     setup_compress, "compress model artifact --text book.txt --to v7", false, CudaWork::kAll},
    {"graft", "Take modules of another checkpoint into a checkpoint: draft layers, an embedding, a layer",
     setup_graft, "graft checkpoint donor grafted --take mtp"},
    {"drop", "Drop modules or experts of a checkpoint, all other bytes as they are", setup_drop,
     "drop checkpoint smaller --experts 96 --by saliency.safetensors"},
    {"repair", "Mend what lint finds in a checkpoint, and copy every other byte", setup_repair,
     "repair checkpoint mended --donor original", true},
    {"validate", "Prove an artifact, from its source or by its own hashes", setup_validate,
     "validate artifact --source checkpoint", true, CudaWork::kAll},
    {"eval", "Measure how well a whole model predicts tokens, and how far it is from another", setup_eval,
     "eval artifact --tokens tokens.safetensors --against checkpoint", false, CudaWork::kAll},
    {"generate", "Continue a text with a whole model, greedily", setup_generate,
     "generate artifact --prompt 'Once upon a time' --against checkpoint", false, CudaWork::kAll},
    {"run", "Run an MoE layer of an artifact on given tokens", setup_run,
     "run artifact --layer 0 --random 8 --seed 1 -o output.safetensors", false, CudaWork::kAll},
    {"card", "Write the model card of an artifact: recipe, figures, hashes, how to load it", setup_card,
     "card artifact --base-model org/model > card.md"},
    {"stats",
     "Collect, check, merge or import statistics of inputs, by which quantize --stats chooses weights",
     setup_stats, "stats check stats.safetensors checkpoint", true, CudaWork::kAll},
    {"recipes", "List or print the recipes that --recipe knows by name", setup_recipes,
     "recipes nvfp4-experts"},
    {"plan", "Plan a conversion that several tasks or machines share", setup_plan,
     "plan checkpoint artifact --to v7 --tasks 16 -o plan.json"},
    {"merge", "Complete the artifact that the tasks of a plan wrote", setup_merge, "merge artifact"},
    {"synth", "Make a checkpoint with the shapes of a known model", setup_synth,
     "synth checkpoint --shape qwen3-next --layers 1 --experts 16"},
    {"completion", "Write the script that completes command lines in a shell", setup_completion,
     "completion bash > ~/.local/share/bash-completion/completions/twofour"},
    {"man", "Write the manual pages", setup_man, "man ~/.local/share/man/man1"},
    {"help", "Show the help of the program or of a command", setup_help, "help convert"},
};

constexpr const char *kLook = "Look at a checkpoint", *kMake = "Make another one of it",
                     *kProve = "Prove, run and publish the result",
                     *kShare = "Statistics, recipes and work for many machines",
                     *kAround = "To try, and for the shell";

constexpr CommandHelp kHelp[] = {
    {"inspect", kLook, "--tensor --stats --at --values --html", "inspect checkpoint --at TENSOR:OFFSET"},
    {"lint", kLook, "--profile --rule --ignore --headers-only --against --explain --html --sarif",
     "lint checkpoint --profile serve\nlint --explain gate-up-swap"},
    {"diff", kLook, "--tolerance --fail-on --include --exclude --headers-only --html"},
    {"convert", kMake,
     "--to --recipe --include --exclude --also --stats --max-shard-size --dry-run --force --resume",
     "convert checkpoint artifact --to v7 --dry-run\nconvert modelopt other --to nvfp4"},
    {"quantize", kMake,
     "--pattern --dialect --block-scale --stats --include --exclude --also --dry-run --force --resume",
     "quantize bf16-checkpoint half --pattern 2:4\nquantize bf16-checkpoint better --stats "
     "stats.safetensors"},
    {"prune", kMake, "--pattern --stats --mask --include --exclude --dry-run --force --resume",
     "prune checkpoint pruned --stats stats.safetensors"},
    {"compress", kMake, "--text --tokens --to --pattern --recipe --limit --html --dry-run --force --resume",
     "compress model artifact --text book.txt --to nvfp4 --limit 64"},
    {"graft", kMake, "--take --dry-run --force --resume"},
    {"drop", kMake, "--modules --experts --by --dry-run --force --resume",
     "drop checkpoint smaller --modules mtp"},
    {"repair", kMake},
    {"validate", kProve, "--source --stats --all-rows --all-layers --html", "validate artifact"},
    {"eval", kProve, "--text --tokens --against --context --limit --html",
     "eval artifact --text book.txt --limit 8"},
    {"generate", kProve, "--prompt --max-tokens --against"},
    {"run", kProve, "--layer --input --random --output"},
    {"card", kProve},
    {"stats", kShare, "--text --tokens --output --context --limit",
     "stats collect model --text book.txt -o stats.safetensors"},
    {"recipes", kShare},
    {"plan", kShare, "--to --recipe --output --tasks"},
    {"merge", kShare},
    {"synth", kAround, "--shape --layers --experts --dialect --small --seed --dry-run"},
    {"completion", kAround},
    {"man", kAround},
    {"help", kAround},
};

constexpr const char* kFooter =
    "Exit codes: 0 done, 1 findings or differences (lint, repair, diff, validate), 2 trouble, 130 "
    "interrupted.\n"
    "Guide and reference: README.md, tools/README.md; manual pages: twofour man DIRECTORY.\n"
    "TWOFOUR_ISA=portable|avx2|avx512|neon forces the kernels of an instruction set.";

}  // namespace

Program twofour_program() {
  return {"twofour",
          "Quantize, prune, convert and check LLM checkpoints, file to file, and prove the result",
          kCommands,
          kFooter,
          kHelp,
          {"twofour lint checkpoint", "twofour convert checkpoint artifact --to v7",
           "twofour validate artifact --source checkpoint"}};
}

}  // namespace twofour
