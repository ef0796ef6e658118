"""Options of the commands, by their names in Python. Made by make_types.py from tools/README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence, TypedDict, Union

if TYPE_CHECKING:
    import os

    Value = Union[str, int, float, os.PathLike[str]]


class Inspect(TypedDict, total=False):
    """Options of `twofour inspect`."""

    #: Show only these tensors and modules: name, glob or re:regex (may be given again)
    tensor: Union[Value, Sequence[Value]]
    stats: bool  #: Read the weights: code histogram, zeros, 2:4 and 4:8 compliance, scale ranges
    at: Value  #: Explain one stored byte
    #: Print weights or elements as numbers: NAME or NAME[e, n, k0:k1]. A module's name prints decoded weights, a
    #: tensor's name what it stores
    values: Value
    #: How the zero points of INT4 that --values prints are read where the config says that there are none and
    #: others are stored: stored, as the config's format says; symmetric, 8 whatever is stored; v2, without the 1
    #: that GPTQ's first version adds (default: refuse such a module)
    zero_points: Value
    html: Value  #: Write a page with heat maps, histograms and findings, for a browser
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)
    device: Value  #: Where to compute. This command runs only on the CPU (default: auto)


class Lint(TypedDict, total=False):
    """Options of `twofour lint`."""

    rules: bool  #: List every rule and exit
    explain: Value  #: Say what a rule finds, what follows and what to do; all: every rule
    #: Severities for a purpose: everything counts, what engines need, what a published checkpoint needs (default:
    #: as --rules says)
    profile: Value
    rule: Union[Value, Sequence[Value]]  #: Change a rule's severity: off, note, warning or error (may be given again)
    select: Union[Value, Sequence[Value]]  #: Only these rules: ids or globs, such as index-* (may be given again)
    ignore: Union[Value, Sequence[Value]]  #: None of these rules (may be given again)
    baseline: Value  #: Findings that are known and do not count: what --write-baseline or --json wrote
    write_baseline: Value  #: Write all findings as a baseline, and end with 0
    headers_only: bool  #: Check headers, index and configs; read no weights
    against: Value  #: Another checkpoint of the same model, to find swapped nibbles and exchanged gate and up
    sarif: bool  #: Print SARIF 2.1.0, for code hosts
    html: Value  #: Write a page with heat maps, histograms and findings, for a browser
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)
    device: Value  #: Where to compute. This command runs only on the CPU (default: auto)


class Diff(TypedDict, total=False):
    """Options of `twofour diff`."""

    #: Compare only these modules or tensors: name, glob or re:regex (may be given again)
    include: Union[Value, Sequence[Value]]
    exclude: Union[Value, Sequence[Value]]  #: Do not compare these modules or tensors (may be given again)
    headers_only: bool  #: Compare names, shapes, formats and small files; read no weights
    #: How the zero points of INT4 of A and B are read where the config says that there are none and others are
    #: stored: stored, as the config's format says; symmetric, 8 whatever is stored; v2, without the 1 that GPTQ's
    #: first version adds (default: refuse such a module)
    zero_points: Value
    tolerance: Value  #: Largest difference of a value that passes, relative to A's (0 to 1e+30; default: 0)
    #: Differences that end with exit code 1: any, none, a class (config, different, removed, added, unlike-shape,
    #: unlike-type, unreadable, within-tolerance, reciprocal), cosine<X, snr<DB, max-abs>X. Commas separate several
    #: (default: any; may be given again)
    fail_on: Union[Value, Sequence[Value]]
    config: Value  #: Compare keys of configs that change what a model computes (default: compare, without --include)
    html: Value  #: Write a page with heat maps, histograms and findings, for a browser
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)
    device: Value  #: Where to compute. This command runs only on the CPU (default: auto)


class Validate(TypedDict, total=False):
    """Options of `twofour validate`."""

    source: Value  #: Checkpoint that the artifact was made from
    donor: Value  #: With --source, of what graft wrote: the checkpoint that modules came from
    #: With --source, of what quantize --stats wrote: the statistics file (default: none: rows that statistics chose
    #: are not solved again)
    stats: Value
    mask: Value  #: With --source, of what --mask of other commands pruned: the file of masks (default: none)
    all_rows: bool  #: With --stats, solve all rows again, not 64 of each matrix
    #: Tokens to run through each layer, each through as many experts as the model picks; 0 runs no layer (0 to
    #: 4096; default: 2, through at most 4 experts)
    tokens: Value
    all_layers: bool  #: Run every layer, not only the first, the last and 2 between
    seed: Value  #: Seed of the layers, experts, activations and routing that are run (default: 0)
    html: Value  #: Write a page with heat maps, histograms and findings, for a browser
    #: How files are read and written. buffered: through the page cache, evicting only the pages that this run
    #: added. direct: past the page cache (O_DIRECT) where the file system supports it, with as many requests in
    #: flight as --jobs (default: buffered)
    io: Value
    #: Where to compute. cuda:1 is the second CUDA device. auto uses a CUDA device if there is one (default: auto)
    device: Value
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)


class Repair(TypedDict, total=False):
    """Options of `twofour repair`."""

    donor: Value  #: Checkpoint of the same model that gives lost or broken modules, tokenizers and configs
    only: Union[Value, Sequence[Value]]  #: Mend only findings of these rules: ids or globs (may be given again)
    fold: Value  #: Give fused linears the larger of unequal global scales, at a stated loss
    #: Scales for linears without a valid one: of neighbours, constant=X (1.0 is an amax of 2688), or 'from FILE'
    #: with M.amax of each module (default: neighbours)
    input_scale: Value
    profile: Value  #: Severities of what is left, as of lint
    force: bool  #: Replace OUT if twofour wrote it
    #: Continue a run into OUT that was interrupted, killed or failed: keep the finished weight files that match
    #: their hashes and write the rest again. A complete OUT is verified
    resume: bool
    max_shard_size: Value  #: Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
    dry_run: bool  #: Show what would be written, write nothing
    no_verify: bool  #: Do not read back what was written
    #: If SRC is a URL: where its weight files are while they are read. They are removed at the end of a run that
    #: succeeds, and kept for --resume by one that does not (default: XDG_CACHE_HOME/twofour, ~/.cache/twofour)
    cache: Value
    cache_size: Value  #: Most bytes of files in --cache, such as 20GB or 16GiB (default: 32GB)
    #: Copy files that links lead to outside of the checkpoint, too. Without it such links are refused: a checkpoint
    #: from elsewhere could link to a secret of yours, and what is written is published
    follow_links: bool
    #: How files are read and written. buffered: through the page cache, evicting only the pages that this run
    #: added. direct: past the page cache (O_DIRECT) where the file system supports it, with as many requests in
    #: flight as --jobs (default: buffered)
    io: Value
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)
    device: Value  #: Where to compute. This command runs only on the CPU (default: auto)


class Convert(TypedDict, total=False):
    """Options of `twofour convert`."""

    to: Value  #: Layout or format to write; see below
    #: Names and configuration to write; deepseek with fp8 only (default: nvfp4: the dialect that the source does
    #: not have, for an artifact that of its source; fp8: compressed-tensors; mxfp8 and mxfp4: modelopt)
    dialect: Value
    #: How the scale of 16 weights is chosen: max fits the largest weight; mse tries all and takes the one with the
    #: least squared error; four-over-six takes the better of two. No producer has the last two in compressed-
    #: tensors' arithmetic. Layouts only, which quantize what is not NVFP4 (default: max)
    block_scale: Value
    #: What to write for a block if its scale rounds to zero: producer writes the scale that the producer writes,
    #: zero writes a zero scale and zero codes. Layouts only, which quantize what is not NVFP4 (default: producer)
    zero_block: Value
    #: Choose the weights that are quantized to NVFP4 or pruned, for a layout too, by the statistics of their inputs
    #: in this file (lib/recipe/statistics/README.md, examples/statistics); of --recipe, method and sweeps of a rule
    #: say how (default: none: each weight for itself)
    stats: Value
    #: With a layout or rules that hold a pattern: prune by the masks of this file, as MaskLLM makes them:
    #: safetensors with M.mask or M, U8 or BOOL [N, K], for each module M that is pruned; 1 stays (default: masks
    #: are chosen)
    mask: Value
    #: Prune this share of the bytes, 0 to 1, and hold all weights of the rest: with a pattern and --stats, whose
    #: fisher_hessian says what each costs the model. The cheapest a byte come first; what is fused stays together.
    #: --dry-run prints the curve (default: all is pruned)
    budget: Value
    plan: Value  #: Run a task of this plan, which twofour plan wrote. It replaces the other options of a conversion
    #: Task to run: number I, from 0, of N (default: by SLURM_ARRAY_TASK_ID, SLURM_PROCID or JOB_COMPLETION_INDEX)
    task: Value
    tasks: Value  #: Number of tasks, if --task does not give it (1 to 1000000)
    html: Value  #: Write a page with heat maps, histograms and findings, for a browser
    include: Union[Value, Sequence[Value]]  #: Convert only these modules: name, glob or re:regex (may be given again)
    exclude: Union[Value, Sequence[Value]]  #: Leave these modules as they are (may be given again)
    #: Convert these modules too: shared experts, single linears (may be given again)
    also: Union[Value, Sequence[Value]]
    max_shard_size: Value  #: Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
    dry_run: bool  #: Show what would be written, write nothing
    no_verify: bool  #: Do not read back what was written
    check: bool  #: If SRC is an artifact, first compare every tensor with the hashes in its twofour.json
    #: If SRC is a URL: where its weight files are while they are read. They are removed at the end of a run that
    #: succeeds, and kept for --resume by one that does not (default: XDG_CACHE_HOME/twofour, ~/.cache/twofour)
    cache: Value
    cache_size: Value  #: Most bytes of files in --cache, such as 20GB or 16GiB (default: 32GB)
    #: Copy files that links lead to outside of the checkpoint, too. Without it such links are refused: a checkpoint
    #: from elsewhere could link to a secret of yours, and what is written is published
    follow_links: bool
    #: How files are read and written. buffered: through the page cache, evicting only the pages that this run
    #: added. direct: past the page cache (O_DIRECT) where the file system supports it, with as many requests in
    #: flight as --jobs (default: buffered)
    io: Value
    force: bool  #: Replace DST if twofour wrote it
    #: Continue a run into DST that was interrupted, killed or failed: keep the finished weight files that match
    #: their hashes and write the rest again. A complete DST is verified
    resume: bool
    #: How the zero points of INT4 of SRC are read where the config says that there are none and others are stored:
    #: stored, as the config's format says; symmetric, 8 whatever is stored; v2, without the 1 that GPTQ's first
    #: version adds (default: refuse such a module)
    zero_points: Value
    #: Rounding to reproduce bit for bit: ModelOpt's (0.45 and later) or llm-compressor's (default: the dialect's)
    arithmetic: Value
    #: What to do about sources in MXFP4 and NVFP4, which other formats often hold without loss: best keeps the
    #: values where that is so, and counts where not; strict refuses quantized sources that lose anything; off
    #: quantizes them as if they were floats (default: best)
    exact: Value
    #: nvfp4, quantize: scales of activations, which W4A4 kernels need. keep those of the source; none; constant=X
    #: for every module (1.0 is an amax of 2688); neighbours: modules without one take the largest of their
    #: projection in the layer; from FILE, a safetensors file with M.amax F32 [] for each module M
    #: (examples/input_scales) (default: nvfp4: keep; quantize: none; deepseek-v4: neighbours, and 1.0 where the
    #: layer has none)
    input_scale: Value
    #: Experts of a layer share the largest input scale, of gate and up and of down, as kernels fuse them
    one_input_scale_a_layer: bool
    #: Routed experts of layers that predict further tokens (DeepSeek-V4's mtp): keep leaves them as they are, which
    #: SGLang reads beside NVFP4 experts; cast converts them as the others, which vLLM expects (default: as
    #: --include and --also say)
    draft_experts: Value
    #: What to do if gate and up have different global scales: a layout stores one. larger folds both to the larger
    #: and refuses if that changes a matrix by more than 10 %; strict refuses; any folds at any cost (default:
    #: larger)
    fold: Value
    #: fp8: which weights share a scale. block is the only choice for deepseek and deepseek-v4 (default: row;
    #: deepseek, deepseek-v4 and with --block: block)
    granularity: Value
    #: fp8: rows and columns of blocks, 128x128, 32x32 or 1x128; modelopt has the first alone (default: 128x128)
    block: Value
    #: fp8: type of the scales, f32, bf16 or e8m0 (powers of two, for blocks). modelopt has f32 alone, compressed-
    #: tensors and deepseek f32 and bf16, deepseek-v4 f32 and e8m0 (default: f32; deepseek-v4: e8m0 beside experts
    #: that stay in four bits)
    scale_dtype: Value
    #: fp8: what to do about linears with N or K that is no multiple of 128, which engines refuse in blocks: refuse
    #: them too; keep them as they are; write them for an engine that takes them (default: refuse)
    odd_blocks: Value
    #: Rules in place of --to: a YAML or JSON file, or a name that twofour recipes lists; see twofour help recipes
    recipe: Value
    #: Refuse statistics of other weights of the same model, as those of the BF16 model for its quantized copy, or
    #: of weights that nothing names
    strict_stats: bool
    max_loss: Value  #: Likewise, as much as stays below this expected loss (default: any)
    #: Where weights are chosen by --stats; the bytes are the same. cuda:1 is the second CUDA device. auto uses a
    #: CUDA device if there is one. All else runs on the CPU (default: auto)
    device: Value
    #: How: joint chooses mask, scales and codes together, gptq the last two without a pattern; wanda and rtn read
    #: the diagonal alone; magnitude leaves the statistics out (default: joint or gptq where the file holds a full
    #: Hessian of enough tokens, else wanda or rtn)
    method: Value
    #: Sweeps of descent after that; a row rests once a sweep gains less than 0.5 % (0 to 64; default: 4 with a
    #: pattern, else 2)
    sweeps: Value
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)


class Prune(TypedDict, total=False):
    """Options of `twofour prune`."""

    pattern: Value  #: 2:4 keeps two codes of each four, 4:8-paired two aligned pairs of each eight (default: 2:4)
    #: How: joint chooses mask, scales and codes together; wanda reads the diagonal alone; magnitude leaves the
    #: statistics out (default: joint where the file holds a full Hessian of enough tokens, else wanda)
    method: Value
    #: Sweeps of descent after that; a row rests once a sweep gains less than 0.5 % (0 to 64; default: 4)
    sweeps: Value
    #: Prune this share of the bytes, 0 to 1, and leave the rest: with a pattern and --stats, whose fisher_hessian
    #: says what each costs the model. The cheapest a byte come first; what is fused stays together. --dry-run
    #: prints the curve (default: all is pruned)
    budget: Value
    html: Value  #: Write a page with heat maps, histograms and findings, for a browser
    include: Union[Value, Sequence[Value]]  #: Convert only these modules: name, glob or re:regex (may be given again)
    exclude: Union[Value, Sequence[Value]]  #: Leave these modules as they are (may be given again)
    #: Convert these modules too: shared experts, single linears (may be given again)
    also: Union[Value, Sequence[Value]]
    max_shard_size: Value  #: Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
    dry_run: bool  #: Show what would be written, write nothing
    no_verify: bool  #: Do not read back what was written
    check: bool  #: If SRC is an artifact, first compare every tensor with the hashes in its twofour.json
    #: If SRC is a URL: where its weight files are while they are read. They are removed at the end of a run that
    #: succeeds, and kept for --resume by one that does not (default: XDG_CACHE_HOME/twofour, ~/.cache/twofour)
    cache: Value
    cache_size: Value  #: Most bytes of files in --cache, such as 20GB or 16GiB (default: 32GB)
    #: Copy files that links lead to outside of the checkpoint, too. Without it such links are refused: a checkpoint
    #: from elsewhere could link to a secret of yours, and what is written is published
    follow_links: bool
    #: How files are read and written. buffered: through the page cache, evicting only the pages that this run
    #: added. direct: past the page cache (O_DIRECT) where the file system supports it, with as many requests in
    #: flight as --jobs (default: buffered)
    io: Value
    force: bool  #: Replace DST if twofour wrote it
    #: Continue a run into DST that was interrupted, killed or failed: keep the finished weight files that match
    #: their hashes and write the rest again. A complete DST is verified
    resume: bool
    #: How the zero points of INT4 of SRC are read where the config says that there are none and others are stored:
    #: stored, as the config's format says; symmetric, 8 whatever is stored; v2, without the 1 that GPTQ's first
    #: version adds (default: refuse such a module)
    zero_points: Value
    #: Choose weights by the statistics of their inputs in this file (lib/recipe/statistics/README.md,
    #: examples/statistics). Block scales are chosen with them (default: none: each weight for itself)
    stats: Value
    #: Refuse statistics of other weights of the same model, as those of the BF16 model for its quantized copy, or
    #: of weights that nothing names
    strict_stats: bool
    #: prune by the masks of this file, as MaskLLM makes them: safetensors with M.mask or M, U8 or BOOL [N, K], for
    #: each module M that is pruned; 1 stays (default: masks are chosen)
    mask: Value
    max_loss: Value  #: Likewise, as much as stays below this expected loss (default: any)
    #: Where weights are chosen by --stats; the bytes are the same. cuda:1 is the second CUDA device. auto uses a
    #: CUDA device if there is one. All else runs on the CPU (default: auto)
    device: Value
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)


class Quantize(TypedDict, total=False):
    """Options of `twofour quantize`."""

    dialect: Value  #: Names and configuration to write (default: modelopt)
    #: 2:4 prunes the weights before quantizing, so that block scales fit the kept weights, and reports the gain;
    #: with --stats both patterns are chosen by it (default: none)
    pattern: Value
    #: How the scale of 16 weights is chosen: max fits the largest weight; mse tries all and takes the one with the
    #: least squared error; four-over-six takes the better of two. No producer has the last two in compressed-
    #: tensors' arithmetic (default: max)
    block_scale: Value
    #: What to write for a block if its scale rounds to zero: producer writes the scale that the producer writes,
    #: zero writes a zero scale and zero codes (default: producer)
    zero_block: Value
    #: With --pattern: prune by the masks of this file, as MaskLLM makes them: safetensors with M.mask or M, U8 or
    #: BOOL [N, K], for each module M that is pruned; 1 stays (default: masks are chosen)
    mask: Value
    html: Value  #: Write a page with heat maps, histograms and findings, for a browser
    include: Union[Value, Sequence[Value]]  #: Convert only these modules: name, glob or re:regex (may be given again)
    exclude: Union[Value, Sequence[Value]]  #: Leave these modules as they are (may be given again)
    #: Convert these modules too: shared experts, single linears (may be given again)
    also: Union[Value, Sequence[Value]]
    max_shard_size: Value  #: Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
    dry_run: bool  #: Show what would be written, write nothing
    no_verify: bool  #: Do not read back what was written
    check: bool  #: If SRC is an artifact, first compare every tensor with the hashes in its twofour.json
    #: If SRC is a URL: where its weight files are while they are read. They are removed at the end of a run that
    #: succeeds, and kept for --resume by one that does not (default: XDG_CACHE_HOME/twofour, ~/.cache/twofour)
    cache: Value
    cache_size: Value  #: Most bytes of files in --cache, such as 20GB or 16GiB (default: 32GB)
    #: Copy files that links lead to outside of the checkpoint, too. Without it such links are refused: a checkpoint
    #: from elsewhere could link to a secret of yours, and what is written is published
    follow_links: bool
    #: How files are read and written. buffered: through the page cache, evicting only the pages that this run
    #: added. direct: past the page cache (O_DIRECT) where the file system supports it, with as many requests in
    #: flight as --jobs (default: buffered)
    io: Value
    force: bool  #: Replace DST if twofour wrote it
    #: Continue a run into DST that was interrupted, killed or failed: keep the finished weight files that match
    #: their hashes and write the rest again. A complete DST is verified
    resume: bool
    #: How the zero points of INT4 of SRC are read where the config says that there are none and others are stored:
    #: stored, as the config's format says; symmetric, 8 whatever is stored; v2, without the 1 that GPTQ's first
    #: version adds (default: refuse such a module)
    zero_points: Value
    #: Rounding to reproduce bit for bit: ModelOpt's (0.45 and later) or llm-compressor's (default: the dialect's)
    arithmetic: Value
    #: What to do about sources in MXFP4 and NVFP4, which other formats often hold without loss: best keeps the
    #: values where that is so, and counts where not; strict refuses quantized sources that lose anything; off
    #: quantizes them as if they were floats (default: best)
    exact: Value
    #: nvfp4, quantize: scales of activations, which W4A4 kernels need. keep those of the source; none; constant=X
    #: for every module (1.0 is an amax of 2688); neighbours: modules without one take the largest of their
    #: projection in the layer; from FILE, a safetensors file with M.amax F32 [] for each module M
    #: (examples/input_scales) (default: nvfp4: keep; quantize: none; deepseek-v4: neighbours, and 1.0 where the
    #: layer has none)
    input_scale: Value
    #: Experts of a layer share the largest input scale, of gate and up and of down, as kernels fuse them
    one_input_scale_a_layer: bool
    #: Routed experts of layers that predict further tokens (DeepSeek-V4's mtp): keep leaves them as they are, which
    #: SGLang reads beside NVFP4 experts; cast converts them as the others, which vLLM expects (default: as
    #: --include and --also say)
    draft_experts: Value
    #: Take the global scales from this NVFP4 checkpoint (directory or file), matched by module name, and compare
    #: all codes and block scales with its own. A weight of -0 stays -0
    keep_global_scale: Value
    #: Choose weights by the statistics of their inputs in this file (lib/recipe/statistics/README.md,
    #: examples/statistics). Block scales are chosen with them (default: none: each weight for itself)
    stats: Value
    #: Refuse statistics of other weights of the same model, as those of the BF16 model for its quantized copy, or
    #: of weights that nothing names
    strict_stats: bool
    max_loss: Value  #: Likewise, as much as stays below this expected loss (default: any)
    #: Where weights are chosen by --stats; the bytes are the same. cuda:1 is the second CUDA device. auto uses a
    #: CUDA device if there is one. All else runs on the CPU (default: auto)
    device: Value
    #: How: joint chooses mask, scales and codes together, gptq the last two without a pattern; wanda and rtn read
    #: the diagonal alone; magnitude leaves the statistics out (default: joint or gptq where the file holds a full
    #: Hessian of enough tokens, else wanda or rtn)
    method: Value
    #: Sweeps of descent after that; a row rests once a sweep gains less than 0.5 % (0 to 64; default: 4 with a
    #: pattern, else 2)
    sweeps: Value
    #: Prune this share of the bytes, 0 to 1, and only quantize the rest: with a pattern and --stats, whose
    #: fisher_hessian says what each costs the model. The cheapest a byte come first; what is fused stays together.
    #: --dry-run prints the curve (default: all is pruned)
    budget: Value
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)


class Compress(TypedDict, total=False):
    """Options of `twofour compress`."""

    to: Value  #: Layout to write, or nvfp4 as quantize writes it
    pattern: Value  #: nvfp4: prune to 2:4 or 4:8-paired (default: none; a layout has its own)
    dialect: Value  #: nvfp4: names and configuration to write (default: modelopt)
    recipe: Value  #: Rules in place of --to: a YAML or JSON file, or a name
    #: Which model the statistics are of. group: one whose groups of linears before are compressed, as q, k and v
    #: are one; what it lacks by then goes into the targets. layer: the same layer by layer, in a third of the
    #: passes. none: the model as it is (default: group)
    sequential: Value
    #: How much each token counts for each linear: M.token_weights F32 [windows, length], which
    #: examples/statistics/collect.py makes of gradients (default: 1)
    token_weights: Value
    #: Keep the statistics in this file, with which validate --source --stats solves rows again (default: none: they
    #: go)
    keep_stats: Value
    context: Value  #: Tokens of a window (2 to 16777216; default: 1024)
    limit: Value  #: At most so many windows (1 to 1073741824; default: all)
    method: Value  #: How weights are chosen, see twofour help quantize (default: joint or gptq)
    sweeps: Value  #: Sweeps of descent after that (0 to 64; default: 4 with a pattern, else 2)
    #: Prune this share of the bytes, 0 to 1, the cheapest by --budget-stats first (default: all is pruned)
    budget: Value
    #: Statistics with fisher_hessian, which say what pruning costs the model (default: none: with --budget
    #: required)
    budget_stats: Value
    include: Union[Value, Sequence[Value]]  #: Convert only these modules: name, glob or re:regex (may be given again)
    exclude: Union[Value, Sequence[Value]]  #: Leave these modules as they are (may be given again)
    #: Convert these modules too: shared experts, single linears (may be given again)
    also: Union[Value, Sequence[Value]]
    max_shard_size: Value  #: Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
    dry_run: bool  #: Show what would be written, write nothing
    no_verify: bool  #: Do not read back what was written
    check: bool  #: If SRC is an artifact, first compare every tensor with the hashes in its twofour.json
    #: Copy files that links lead to outside of the checkpoint, too. Without it such links are refused: a checkpoint
    #: from elsewhere could link to a secret of yours, and what is written is published
    follow_links: bool
    #: How files are read and written. buffered: through the page cache, evicting only the pages that this run
    #: added. direct: past the page cache (O_DIRECT) where the file system supports it, with as many requests in
    #: flight as --jobs (default: buffered)
    io: Value
    force: bool  #: Replace DST if twofour wrote it
    #: Continue a run into DST that was interrupted, killed or failed: keep the finished weight files that match
    #: their hashes and write the rest again. A complete DST is verified
    resume: bool
    #: How the zero points of INT4 of SRC are read where the config says that there are none and others are stored:
    #: stored, as the config's format says; symmetric, 8 whatever is stored; v2, without the 1 that GPTQ's first
    #: version adds (default: refuse such a module)
    zero_points: Value
    tokens: Value  #: Token ids [W, T], I32 or I64, in safetensors or .npy: each row is a text of its own
    text: Value  #: Text in UTF-8, which the model's tokenizer.json takes apart
    #: Where to compute. cuda:1 is the second CUDA device. auto uses a CUDA device if there is one (default: auto)
    device: Value
    jobs: Value  #: Number of threads (1 to 4096; default: one per processor)
