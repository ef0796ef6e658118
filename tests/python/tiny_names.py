"""What tests of both environments call models and layouts."""

LAYOUTS = ("v7", "v7-packed", "g8")
FAMILIES = ("llama", "mixtral", "qwen3_moe")
