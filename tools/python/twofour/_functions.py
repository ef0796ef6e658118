"""The program's commands as functions. Made by make_types.py from tools/README.md and tools/JSON.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, Sequence, Union, cast, overload

from ._commands import call, explained

if TYPE_CHECKING:
    from . import documents
    from ._commands import Path, ProgressCallback


@explained
def inspect(
    path: Path,
    *,
    tensor: Optional[Union[str, Sequence[str]]] = None,
    stats: bool = False,
    at: Optional[str] = None,
    values: Optional[str] = None,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    html: Optional[Path] = None,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Inspect:
    """Show what a checkpoint or artifact holds.

    Example: twofour.inspect("checkpoint", stats=True)

    Args:
        path (path): Checkpoint or artifact directory, or one safetensors file, or hf://org/name[@revision] or https://
        tensor (str or a list of such): Show only these tensors and modules: name, glob or re:regex
        stats (True or False): Read the weights: code histogram, zeros, 2:4 and 4:8 compliance, scale ranges (default:
            False)
        at (str): Explain one stored byte
        values (str): Print weights or elements as numbers: NAME or NAME[e, n, k0:k1]. A module's name prints decoded
            weights, a tensor's name what it stores
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 that values prints are read where the
            config says that there are none and others are stored: stored, as the config's format says; symmetric, 8
            whatever is stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        html (path): Write a page with heat maps, histograms and findings, for a browser
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Inspect, the document `inspect` of tools/JSON.md:
            what (string): what the path holds
            files (integer): weight files
            tensor_count (integer)
            data_bytes (integer): bytes of tensors
            header_bytes (integer): bytes of headers
            other_files (map of integer): bytes of every other file
            total_bytes (integer): all files
            default_set_bytes (integer): what `convert` takes by default
            layout_bytes (map of integer): the same in each layout
            formats (map of integer): quantized modules of each format: `INT4`
            findings (list of finding)
            tensors (list of tensors)
            nvfp4_modules (list of modules)
            other_modules (list of modules): in FP8, MXFP4 and INT4; `dialect` says what shares a scale
        A documents.InspectAt for inspect(at=...).
        A documents.InspectValues for inspect(values=...).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.
    """
    return cast("documents.Inspect", call(
        "inspect", path, progress=progress, tensor=tensor, stats=stats, at=at, values=values, zero_points=zero_points,
        html=html, jobs=jobs, device=device,
    ))  # fmt: skip


@explained
def lint(
    path: Optional[Path] = None,
    *,
    rules: bool = False,
    explain: Optional[str] = None,
    profile: Optional[Literal["strict", "serve", "publish"]] = None,
    rule: Optional[Union[str, Sequence[str]]] = None,
    select: Optional[Union[str, Sequence[str]]] = None,
    ignore: Optional[Union[str, Sequence[str]]] = None,
    baseline: Optional[Path] = None,
    write_baseline: Optional[Path] = None,
    headers_only: bool = False,
    against: Optional[Path] = None,
    html: Optional[Path] = None,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Lint:
    """Find known faults in a checkpoint or artifact.

    Example: twofour.lint("checkpoint", html="report.html")

    Args:
        path (path, or None): Checkpoint or artifact directory, or one safetensors file, or hf://org/name[@revision] or
            https://
        rules (True or False): List every rule and exit (default: False)
        explain (str): Say what a rule finds, what follows and what to do; all: every rule
        profile ("strict", "serve", "publish"): Severities for a purpose: everything counts, what engines need, what a
            published checkpoint needs (default: as rules=True says)
        rule (str or a list of such): Change a rule's severity: off, note, warning or error
        select (str or a list of such): Only these rules: ids or globs, such as index-*
        ignore (str or a list of such): None of these rules
        baseline (path): Findings that are known and do not count: what write_baseline or --json wrote
        write_baseline (path): Write all findings as a baseline, and end with 0
        headers_only (True or False): Check headers, index and configs; read no weights (default: False)
        against (path): Another checkpoint of the same model, to find swapped nibbles and exchanged gate and up
        html (path): Write a page with heat maps, histograms and findings, for a browser
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Lint, the document `lint` of tools/JSON.md:
            path (string)
            sound (boolean): whether there is no error and no warning
            errors (integer): findings of that severity, without consequences
            warnings (integer)
            notes (integer)
            consequences (integer): what is listed below findings
            files (integer)
            tensors (integer)
            bytes (integer): bytes read
            seconds (number)
            rules (list of rule): those that found something
            findings (list of finding)
            known (list of finding): those of `baseline`; they count for nothing
        A documents.LintRules for lint(rules=True).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        Checks that files, index and headers agree, that configs describe the tensors, that shapes, dtypes and scales of a
        module and of its siblings (gate and up, the experts of a layer) fit together, and that no block of weights is NaN,
        zero or damaged. One file is read as its folder's configs say. rules=True lists every rule, what it means and what to
        do. A finding that follows from another is listed below it and does not count. Of severities the later decides:
        profile, rule, select, ignore. Findings of severity warning or error end with exit code 1, but for those of the
        baseline.
    """
    return cast("documents.Lint", call(
        "lint", path, progress=progress, rules=rules, explain=explain, profile=profile, rule=rule, select=select,
        ignore=ignore, baseline=baseline, write_baseline=write_baseline, headers_only=headers_only, against=against,
        html=html, jobs=jobs, device=device,
    ))  # fmt: skip


@explained
def diff(
    a: Path,
    b: Path,
    *,
    include: Optional[Union[str, Sequence[str]]] = None,
    exclude: Optional[Union[str, Sequence[str]]] = None,
    headers_only: bool = False,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    tolerance: Optional[float] = None,
    fail_on: Optional[Union[str, Sequence[str]]] = None,
    config: Optional[Literal["compare", "ignore"]] = None,
    html: Optional[Path] = None,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Diff:
    """Compare two checkpoints or artifacts as numbers, across dialects and layouts.

    Example: twofour.diff("checkpoint", "artifact", tolerance=0.001)

    Args:
        a (path): Checkpoint or artifact, in any dialect or layout, or hf://org/name[@revision] or https://
        b (path): Checkpoint or artifact to compare with A, or hf://org/name[@revision] or https://
        include (str or a list of such): Compare only these modules or tensors: name, glob or re:regex
        exclude (str or a list of such): Do not compare these modules or tensors
        headers_only (True or False): Compare names, shapes, formats and small files; read no weights (default: False)
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of A and B are read where the config says
            that there are none and others are stored: stored, as the config's format says; symmetric, 8 whatever is
            stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        tolerance (float): Largest difference of a value that passes, relative to A's (0 to 1e+30; default: 0)
        fail_on (str or a list of such): Differences that end with exit code 1: any, none, a class (config, different,
            removed, added, unlike-shape, unlike-type, unreadable, within-tolerance, reciprocal), cosine<X, snr<DB,
            max-abs>X. Commas separate several (default: any)
        config ("compare", "ignore"): Compare keys of configs that change what a model computes (default: compare, without
            include)
        html (path): Write a page with heat maps, histograms and findings, for a browser
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Diff, the document `diff` of tools/JSON.md:
            a (side)
            b (side)
            tolerance (number)
            headers_only (boolean): no weights were read
            failed (integer): entries and keys that `fail_on` counts
            counts (map of integer): entries of each class
            renamed (integer): entries under other names
            same_bytes (integer): entries equal byte for byte
            rows (list of row): by layer and projection
            files (list of compared file): files that are no weights
            config (list of config key): keys of config.json and generation_config.json that differ, and the quantization
                of modules that the configs state differently
            moved (list of moved weights): what of that which differs is elsewhere, or in another order, in B
            findings (list of finding)
            entries (list of entry)

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.
    """
    return cast("documents.Diff", call(
        "diff", a, b, progress=progress, include=include, exclude=exclude, headers_only=headers_only,
        zero_points=zero_points, tolerance=tolerance, fail_on=fail_on, config=config, html=html, jobs=jobs,
        device=device,
    ))  # fmt: skip


@explained
def convert(
    source: Optional[Path] = None,
    destination: Optional[Path] = None,
    *,
    to: Optional[Literal["v7", "v7-packed", "g8", "nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "bf16"]] = None,
    dialect: Optional[Literal["modelopt", "compressed-tensors", "deepseek", "deepseek-v4"]] = None,
    block_scale: Optional[Literal["max", "mse", "four-over-six"]] = None,
    zero_block: Optional[Literal["producer", "zero"]] = None,
    stats: Optional[Path] = None,
    mask: Optional[Path] = None,
    budget: Optional[float] = None,
    plan: Optional[Path] = None,
    task: Optional[str] = None,
    tasks: Optional[int] = None,
    include: Optional[Union[str, Sequence[str]]] = None,
    exclude: Optional[Union[str, Sequence[str]]] = None,
    also: Optional[Union[str, Sequence[str]]] = None,
    max_shard_size: Optional[Union[int, str]] = None,
    dry_run: bool = False,
    no_verify: bool = False,
    check: bool = False,
    cache: Optional[Path] = None,
    cache_size: Optional[Union[int, str]] = None,
    follow_links: bool = False,
    no_readme: bool = False,
    io: Optional[Literal["buffered", "direct"]] = None,
    force: bool = False,
    resume: bool = False,
    without_config: bool = False,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    fold: Optional[Literal["larger", "strict", "any"]] = None,
    granularity: Optional[Literal["tensor", "row", "block"]] = None,
    block: Optional[str] = None,
    scale_dtype: Optional[str] = None,
    odd_blocks: Optional[Literal["refuse", "keep", "write"]] = None,
    arithmetic: Optional[Literal["modelopt", "compressed-tensors"]] = None,
    exact: Optional[Literal["best", "strict", "off"]] = None,
    input_scale: Optional[str] = None,
    one_input_scale_a_layer: bool = False,
    draft_experts: Optional[Literal["keep", "cast"]] = None,
    recipe: Optional[Path] = None,
    strict_stats: bool = False,
    method: Optional[Literal["joint", "gptq", "wanda", "rtn", "magnitude"]] = None,
    sweeps: Optional[int] = None,
    shrink: Optional[float] = None,
    scale_search: Optional[int] = None,
    max_loss: Optional[float] = None,
    html: Optional[Path] = None,
    device: Optional[str] = None,
    jobs: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Convert:
    """Convert a checkpoint to a layout that kernels read.

    Example: twofour.convert("checkpoint", "artifact", to="v7")

    Args:
        source (path, or None): Hugging Face checkpoint directory, or hf://org/name[@revision] or https://
        destination (path, or None): Directory to write; absent or empty
        to ("v7", "v7-packed", "g8", "nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "bf16"): Layout or format to write; see
            below
        dialect ("modelopt", "compressed-tensors", "deepseek", "deepseek-v4"): Names and configuration to write; deepseek
            with fp8 only (default: nvfp4: the dialect that the source does not have, for an artifact that of its source;
            fp8 and mxfp6: compressed-tensors; mxfp8 and mxfp4: modelopt)
        block_scale ("max", "mse", "four-over-six"): How the scale of 16 weights is chosen: max fits the largest weight;
            mse tries all and takes the one with the least squared error; four-over-six takes the better of two. No
            producer has the last two in compressed-tensors' arithmetic. Layouts only, which quantize what is not NVFP4
            (default: max)
        zero_block ("producer", "zero"): What to write for a block if its scale rounds to zero: producer writes the scale
            that the producer writes, zero writes a zero scale and zero codes. Layouts only, which quantize what is not
            NVFP4 (default: producer)
        stats (path): Choose the weights that are quantized or pruned, for a layout too, by the statistics of their inputs
            in this file (lib/recipe/statistics/README.md, examples/statistics); of recipe, method and sweeps of a rule
            say how (default: none: each weight for itself)
        mask (path): With a layout or rules that hold a pattern: prune by the masks of this file, as MaskLLM makes them:
            safetensors with M.mask or M, U8 or BOOL [N, K], for each module M that is pruned; 1 stays (default: masks are
            chosen)
        budget (float): Prune this share of the bytes, 0 to 1, and hold all weights of the rest: with a pattern and stats,
            whose fisher_hessian says what each costs the model. The cheapest a byte come first; what is fused stays
            together. dry_run=True prints the curve (default: all is pruned)
        plan (path): Run a task of this plan, which twofour.plan() wrote. It replaces the other options of a conversion
        task (str): Task to run: number I, from 0, of N (default: by SLURM_ARRAY_TASK_ID, SLURM_PROCID or
            JOB_COMPLETION_INDEX)
        tasks (int): Number of tasks, if task does not give it (1 to 1000000)
        include (str or a list of such): Convert only these modules: name, glob or re:regex
        exclude (str or a list of such): Leave these modules as they are
        also (str or a list of such): Convert these modules too: shared experts, single linears
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        dry_run (True or False): Show what would be written, write nothing (default: False)
        no_verify (True or False): Do not read back what was written (default: False)
        check (True or False): If source is an artifact, first compare every tensor with the hashes in its twofour.json
            (default: False)
        cache (path): If source is a URL: where its weight files are while they are read. They are removed at the end of a
            run that succeeds, and kept for resume=True by one that does not (default: XDG_CACHE_HOME/twofour,
            ~/.cache/twofour)
        cache_size (int or str): Most bytes of files in cache, such as 20GB or 16GiB (default: 32GB)
        follow_links (True or False): Copy files that links lead to outside of the checkpoint, too. Otherwise such links
            are refused: they could lead to a secret, and outputs are published (default: False)
        no_readme (True or False): Write no README.md about the output (TWOFOUR.md beside its author's README.md)
            (default: False)
        io ("buffered", "direct"): How files are read and written. buffered: through the page cache, evicting only the
            pages that this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as
            many requests in flight as jobs (default: buffered)
        force (True or False): Replace destination if twofour wrote it (default: False)
        resume (True or False): Continue a run into destination that was interrupted, killed or failed: keep the finished
            weight files that match their hashes and write the rest again. A complete destination is verified (default:
            False)
        without_config (True or False): Take weights without config.json, too, which no engine loads (default: False)
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of source are read where the config says
            that there are none and others are stored: stored, as the config's format says; symmetric, 8 whatever is
            stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        fold ("larger", "strict", "any"): What to do if gate and up have different global scales: a layout stores one.
            larger folds both to the larger and refuses if that changes a matrix by more than 10 %; strict refuses; any
            folds at any cost (default: larger)
        granularity ("tensor", "row", "block"): fp8: which weights share a scale. block is the only choice for deepseek
            and deepseek-v4 (default: row; deepseek, deepseek-v4 and with block: block)
        block (str): fp8: rows and columns of blocks, 128x128, 32x32 or 1x128; modelopt has the first alone (default:
            128x128)
        scale_dtype (str): fp8: type of the scales, f32, bf16 or e8m0 (powers of two, for blocks). modelopt has f32 alone,
            compressed-tensors and deepseek f32 and bf16, deepseek-v4 f32 and e8m0 (default: f32; deepseek-v4: e8m0 beside
            experts that stay in four bits)
        odd_blocks ("refuse", "keep", "write"): fp8: what to do about linears with N or K that is no multiple of 128,
            which engines refuse in blocks: refuse them too; keep them as they are; write them for an engine that takes
            them (default: refuse)
        arithmetic ("modelopt", "compressed-tensors"): Rounding to reproduce bit for bit: ModelOpt's (0.45 and later) or
            llm-compressor's (default: the dialect's)
        exact ("best", "strict", "off"): What to do about sources in MXFP4 and NVFP4, which other formats often hold
            without loss: best keeps the values where that is so, and counts where not; strict refuses quantized sources
            that lose anything; off quantizes them as if they were floats (default: best)
        input_scale (str): nvfp4, quantize: scales of activations, which W4A4 kernels need. keep those of the source;
            none; constant=X for every module (1.0 is an amax of 2688); neighbours: modules without one take the largest
            of their projection in the layer; from FILE, a safetensors file with M.amax F32 [] for each module M
            (examples/input_scales) (default: nvfp4: keep; quantize: none; deepseek-v4: neighbours, and 1.0 where the
            layer has none)
        one_input_scale_a_layer (True or False): Experts of a layer share the largest input scale, of gate and up and of
            down, as kernels fuse them (default: False)
        draft_experts ("keep", "cast"): Routed experts of layers that predict further tokens (DeepSeek-V4's mtp): keep
            leaves them as they are, which SGLang reads beside NVFP4 experts; cast converts them as the others, which vLLM
            expects (default: as include and also say)
        recipe (path): Rules in place of to: a YAML or JSON file, a name that twofour.recipes() lists, or the twofour.json
            of an artifact; see help(twofour.recipes)
        strict_stats (True or False): Refuse statistics of other weights of the same model, as those of the BF16 model for
            its quantized copy, or of weights that nothing names (default: False)
        method ("joint", "gptq", "wanda", "rtn", "magnitude"): How: joint chooses mask, scales and codes together, gptq
            the last two without a pattern; wanda and rtn read the diagonal alone; magnitude leaves the statistics out
            (default: joint or gptq where the file holds a full Hessian of enough tokens, else wanda or rtn)
        sweeps (int): Sweeps of descent once weights are chosen; a row rests once a sweep gains less than 0.5 % (0 to 64;
            default: 4 with a pattern, fp8: 0, else 2)
        shrink (float): Share taken off products of two inputs (default: 0.5, with a pattern 0.1; by guided statistics
            0.2, with a pattern 0.05)
        scale_search (int): Codes tried above the largest weight's scale (0 to 16; default: 7; powers of two: 1)
        max_loss (float): Prune as much as stays below this expected loss, else as budget (default: any)
        html (path): With budget or max_loss: write a page about the choice, for a browser
        device ("cpu", "cuda", "auto"): Where weights are chosen by stats; the bytes are the same. cuda:1 is the second
            CUDA device. auto uses a CUDA device if there is one. All else runs on the CPU (default: auto)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Convert, the document `convert` of tools/JSON.md:
            layout (string): layout or format that was written; `graft`, `drop`
            device (string): `cpu` or `cuda`
            was_complete (boolean): `resume=True` found it complete
            files_kept (integer): weight files of an earlier run
            bytes_kept (integer)
            bytes_read (integer)
            bytes_written (integer)
            bytes_verified (integer): read back and compared
            seconds (number)
            files (integer): weight files
            tensors (integer)
            modules (list of module)
            findings (list of finding)
            recovery (recovery, optional): `compress(recover=...)`
        A documents.ConvertDryRun for convert(dry_run=True).
        A documents.ConvertPlan for convert(plan=...).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        to writes:
            v7: 2:4-pruned NVFP4, 3.5 bits a weight: codes, metadata and block scales as three tensors, N contiguous
            v7-packed: 2:4-pruned NVFP4, 4 bits a weight: v7 in one tensor, with each block scale twice
            g8: dense NVFP4, 4.5 bits a weight: gate and up rows interleaved by 8, block scales in 128x4 tiles
            nvfp4: NVFP4 in a dialect that engines load, without loss
            fp8: E4M3 weights with a scale for each tensor, row or block
            mxfp8: E4M3 weights with a power of two for each 32
            mxfp6: E2M3 weights with a power of two for each 32
            mxfp4: E2M1 weights with a power of two for each 32
            bf16: dequantized weights
    """
    return cast("documents.Convert", call(
        "convert", source, destination, progress=progress, to=to, dialect=dialect, block_scale=block_scale,
        zero_block=zero_block, stats=stats, mask=mask, budget=budget, plan=plan, task=task, tasks=tasks,
        include=include, exclude=exclude, also=also, max_shard_size=max_shard_size, dry_run=dry_run,
        no_verify=no_verify, check=check, cache=cache, cache_size=cache_size, follow_links=follow_links,
        no_readme=no_readme, io=io, force=force, resume=resume, without_config=without_config,
        zero_points=zero_points, fold=fold, granularity=granularity, block=block, scale_dtype=scale_dtype,
        odd_blocks=odd_blocks, arithmetic=arithmetic, exact=exact, input_scale=input_scale,
        one_input_scale_a_layer=one_input_scale_a_layer, draft_experts=draft_experts, recipe=recipe,
        strict_stats=strict_stats, method=method, sweeps=sweeps, shrink=shrink, scale_search=scale_search,
        max_loss=max_loss, html=html, device=device, jobs=jobs,
    ))  # fmt: skip


@explained
def quantize(
    source: Path,
    destination: Path,
    *,
    dialect: Optional[Literal["modelopt", "compressed-tensors", "deepseek-v4"]] = None,
    pattern: Optional[Literal["2:4", "4:8-paired"]] = None,
    block_scale: Optional[Literal["max", "mse", "four-over-six"]] = None,
    zero_block: Optional[Literal["producer", "zero"]] = None,
    mask: Optional[Path] = None,
    include: Optional[Union[str, Sequence[str]]] = None,
    exclude: Optional[Union[str, Sequence[str]]] = None,
    also: Optional[Union[str, Sequence[str]]] = None,
    max_shard_size: Optional[Union[int, str]] = None,
    dry_run: bool = False,
    no_verify: bool = False,
    check: bool = False,
    cache: Optional[Path] = None,
    cache_size: Optional[Union[int, str]] = None,
    follow_links: bool = False,
    no_readme: bool = False,
    io: Optional[Literal["buffered", "direct"]] = None,
    force: bool = False,
    resume: bool = False,
    without_config: bool = False,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    arithmetic: Optional[Literal["modelopt", "compressed-tensors"]] = None,
    exact: Optional[Literal["best", "strict", "off"]] = None,
    input_scale: Optional[str] = None,
    one_input_scale_a_layer: bool = False,
    draft_experts: Optional[Literal["keep", "cast"]] = None,
    keep_global_scale: Optional[Path] = None,
    stats: Optional[Path] = None,
    strict_stats: bool = False,
    method: Optional[Literal["joint", "gptq", "wanda", "rtn", "magnitude"]] = None,
    sweeps: Optional[int] = None,
    shrink: Optional[float] = None,
    scale_search: Optional[int] = None,
    budget: Optional[float] = None,
    max_loss: Optional[float] = None,
    html: Optional[Path] = None,
    device: Optional[str] = None,
    jobs: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Convert:
    """Quantize BF16, FP16, FP32, FP8 or MXFP4 weights to NVFP4.

    Example: twofour.quantize("bf16-checkpoint", "nvfp4-checkpoint", block_scale="four-over-six")

    Args:
        source (path): Hugging Face checkpoint directory, or hf://org/name[@revision] or https://
        destination (path): Directory to write; absent or empty
        dialect ("modelopt", "compressed-tensors", "deepseek-v4"): Names and configuration to write (default: modelopt)
        pattern ("2:4", "4:8-paired"): 2:4 prunes the weights before quantizing, so that block scales fit the kept
            weights, and reports the gain; with stats both patterns are chosen by it (default: none)
        block_scale ("max", "mse", "four-over-six"): How the scale of 16 weights is chosen: max fits the largest weight;
            mse tries all and takes the one with the least squared error; four-over-six takes the better of two. No
            producer has the last two in compressed-tensors' arithmetic (default: max)
        zero_block ("producer", "zero"): What to write for a block if its scale rounds to zero: producer writes the scale
            that the producer writes, zero writes a zero scale and zero codes (default: producer)
        mask (path): With pattern: prune by the masks of this file, as MaskLLM makes them: safetensors with M.mask or M,
            U8 or BOOL [N, K], for each module M that is pruned; 1 stays (default: masks are chosen)
        include (str or a list of such): Convert only these modules: name, glob or re:regex
        exclude (str or a list of such): Leave these modules as they are
        also (str or a list of such): Convert these modules too: shared experts, single linears
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        dry_run (True or False): Show what would be written, write nothing (default: False)
        no_verify (True or False): Do not read back what was written (default: False)
        check (True or False): If source is an artifact, first compare every tensor with the hashes in its twofour.json
            (default: False)
        cache (path): If source is a URL: where its weight files are while they are read. They are removed at the end of a
            run that succeeds, and kept for resume=True by one that does not (default: XDG_CACHE_HOME/twofour,
            ~/.cache/twofour)
        cache_size (int or str): Most bytes of files in cache, such as 20GB or 16GiB (default: 32GB)
        follow_links (True or False): Copy files that links lead to outside of the checkpoint, too. Otherwise such links
            are refused: they could lead to a secret, and outputs are published (default: False)
        no_readme (True or False): Write no README.md about the output (TWOFOUR.md beside its author's README.md)
            (default: False)
        io ("buffered", "direct"): How files are read and written. buffered: through the page cache, evicting only the
            pages that this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as
            many requests in flight as jobs (default: buffered)
        force (True or False): Replace destination if twofour wrote it (default: False)
        resume (True or False): Continue a run into destination that was interrupted, killed or failed: keep the finished
            weight files that match their hashes and write the rest again. A complete destination is verified (default:
            False)
        without_config (True or False): Take weights without config.json, too, which no engine loads (default: False)
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of source are read where the config says
            that there are none and others are stored: stored, as the config's format says; symmetric, 8 whatever is
            stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        arithmetic ("modelopt", "compressed-tensors"): Rounding to reproduce bit for bit: ModelOpt's (0.45 and later) or
            llm-compressor's (default: the dialect's)
        exact ("best", "strict", "off"): What to do about sources in MXFP4 and NVFP4, which other formats often hold
            without loss: best keeps the values where that is so, and counts where not; strict refuses quantized sources
            that lose anything; off quantizes them as if they were floats (default: best)
        input_scale (str): nvfp4, quantize: scales of activations, which W4A4 kernels need. keep those of the source;
            none; constant=X for every module (1.0 is an amax of 2688); neighbours: modules without one take the largest
            of their projection in the layer; from FILE, a safetensors file with M.amax F32 [] for each module M
            (examples/input_scales) (default: nvfp4: keep; quantize: none; deepseek-v4: neighbours, and 1.0 where the
            layer has none)
        one_input_scale_a_layer (True or False): Experts of a layer share the largest input scale, of gate and up and of
            down, as kernels fuse them (default: False)
        draft_experts ("keep", "cast"): Routed experts of layers that predict further tokens (DeepSeek-V4's mtp): keep
            leaves them as they are, which SGLang reads beside NVFP4 experts; cast converts them as the others, which vLLM
            expects (default: as include and also say)
        keep_global_scale (path): Take the global scales from this NVFP4 checkpoint (directory or file), matched by module
            name, and compare all codes and block scales with its own. A weight of -0 stays -0
        stats (path): Choose weights by the statistics of their inputs in this file (lib/recipe/statistics/README.md,
            examples/statistics). Block scales are chosen with them (default: none: each weight for itself)
        strict_stats (True or False): Refuse statistics of other weights of the same model, as those of the BF16 model for
            its quantized copy, or of weights that nothing names (default: False)
        method ("joint", "gptq", "wanda", "rtn", "magnitude"): How: joint chooses mask, scales and codes together, gptq
            the last two without a pattern; wanda and rtn read the diagonal alone; magnitude leaves the statistics out
            (default: joint or gptq where the file holds a full Hessian of enough tokens, else wanda or rtn)
        sweeps (int): Sweeps of descent once weights are chosen; a row rests once a sweep gains less than 0.5 % (0 to 64;
            default: 4 with a pattern, fp8: 0, else 2)
        shrink (float): Share taken off products of two inputs (default: 0.5, with a pattern 0.1; by guided statistics
            0.2, with a pattern 0.05)
        scale_search (int): Codes tried above the largest weight's scale (0 to 16; default: 7; powers of two: 1)
        budget (float): Prune this share of the bytes, 0 to 1, and only quantize the rest: with a pattern and stats, whose
            fisher_hessian says what each costs the model. The cheapest a byte come first; what is fused stays together.
            dry_run=True prints the curve (default: all is pruned)
        max_loss (float): Prune as much as stays below this expected loss, else as budget (default: any)
        html (path): With budget or max_loss: write a page about the choice, for a browser
        device ("cpu", "cuda", "auto"): Where weights are chosen by stats; the bytes are the same. cuda:1 is the second
            CUDA device. auto uses a CUDA device if there is one. All else runs on the CPU (default: auto)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Convert, the document `convert` of tools/JSON.md:
            layout (string): layout or format that was written; `graft`, `drop`
            device (string): `cpu` or `cuda`
            was_complete (boolean): `resume=True` found it complete
            files_kept (integer): weight files of an earlier run
            bytes_kept (integer)
            bytes_read (integer)
            bytes_written (integer)
            bytes_verified (integer): read back and compared
            seconds (number)
            files (integer): weight files
            tensors (integer)
            modules (list of module)
            findings (list of finding)
            recovery (recovery, optional): `compress(recover=...)`
        A documents.ConvertDryRun for convert(dry_run=True).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        Quantizes every linear except embeddings, heads, routers, norms, convolutions, vision towers and MTP, which stay in
        floats. Weights in FP8 or MXFP4 are quantized wherever they are. also adds modules. Only weights are quantized:
        activations need calibration data. Engines run the output as W4A16. Gate and up share a global scale, and so do q, k
        and v. A stack of experts becomes one matrix per expert. MXFP4 is cast without loss where its block scales allow.
    """
    return cast("documents.Convert", call(
        "quantize", source, destination, progress=progress, dialect=dialect, pattern=pattern, block_scale=block_scale,
        zero_block=zero_block, mask=mask, include=include, exclude=exclude, also=also, max_shard_size=max_shard_size,
        dry_run=dry_run, no_verify=no_verify, check=check, cache=cache, cache_size=cache_size,
        follow_links=follow_links, no_readme=no_readme, io=io, force=force, resume=resume,
        without_config=without_config, zero_points=zero_points, arithmetic=arithmetic, exact=exact,
        input_scale=input_scale, one_input_scale_a_layer=one_input_scale_a_layer, draft_experts=draft_experts,
        keep_global_scale=keep_global_scale, stats=stats, strict_stats=strict_stats, method=method, sweeps=sweeps,
        shrink=shrink, scale_search=scale_search, budget=budget, max_loss=max_loss, html=html, device=device,
        jobs=jobs,
    ))  # fmt: skip


@explained
def prune(
    source: Path,
    destination: Path,
    *,
    pattern: Optional[Literal["2:4", "4:8-paired"]] = None,
    method: Optional[Literal["joint", "wanda", "magnitude"]] = None,
    sweeps: Optional[int] = None,
    budget: Optional[float] = None,
    include: Optional[Union[str, Sequence[str]]] = None,
    exclude: Optional[Union[str, Sequence[str]]] = None,
    also: Optional[Union[str, Sequence[str]]] = None,
    max_shard_size: Optional[Union[int, str]] = None,
    dry_run: bool = False,
    no_verify: bool = False,
    check: bool = False,
    cache: Optional[Path] = None,
    cache_size: Optional[Union[int, str]] = None,
    follow_links: bool = False,
    no_readme: bool = False,
    io: Optional[Literal["buffered", "direct"]] = None,
    force: bool = False,
    resume: bool = False,
    without_config: bool = False,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    stats: Optional[Path] = None,
    strict_stats: bool = False,
    shrink: Optional[float] = None,
    scale_search: Optional[int] = None,
    mask: Optional[Path] = None,
    max_loss: Optional[float] = None,
    html: Optional[Path] = None,
    device: Optional[str] = None,
    jobs: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Convert:
    """Prune a checkpoint to 2:4 or 4:8-paired, in its own dialect.

    Example: twofour.prune("checkpoint", "pruned", pattern="2:4")

    Args:
        source (path): Hugging Face checkpoint directory, or hf://org/name[@revision] or https://
        destination (path): Directory to write; absent or empty
        pattern ("2:4", "4:8-paired"): 2:4 keeps two codes of each four, 4:8-paired two aligned pairs of each eight
            (default: 2:4)
        method ("joint", "wanda", "magnitude"): How: joint chooses mask, scales and codes together; wanda reads the
            diagonal alone; magnitude leaves the statistics out (default: joint where the file holds a full Hessian of
            enough tokens, else wanda)
        sweeps (int): Sweeps of descent once weights are chosen; a row rests once a sweep gains less than 0.5 % (0 to 64;
            default: 4)
        budget (float): Prune this share of the bytes, 0 to 1, and leave the rest: with a pattern and stats, whose
            fisher_hessian says what each costs the model. The cheapest a byte come first; what is fused stays together.
            dry_run=True prints the curve (default: all is pruned)
        include (str or a list of such): Convert only these modules: name, glob or re:regex
        exclude (str or a list of such): Leave these modules as they are
        also (str or a list of such): Convert these modules too: shared experts, single linears
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        dry_run (True or False): Show what would be written, write nothing (default: False)
        no_verify (True or False): Do not read back what was written (default: False)
        check (True or False): If source is an artifact, first compare every tensor with the hashes in its twofour.json
            (default: False)
        cache (path): If source is a URL: where its weight files are while they are read. They are removed at the end of a
            run that succeeds, and kept for resume=True by one that does not (default: XDG_CACHE_HOME/twofour,
            ~/.cache/twofour)
        cache_size (int or str): Most bytes of files in cache, such as 20GB or 16GiB (default: 32GB)
        follow_links (True or False): Copy files that links lead to outside of the checkpoint, too. Otherwise such links
            are refused: they could lead to a secret, and outputs are published (default: False)
        no_readme (True or False): Write no README.md about the output (TWOFOUR.md beside its author's README.md)
            (default: False)
        io ("buffered", "direct"): How files are read and written. buffered: through the page cache, evicting only the
            pages that this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as
            many requests in flight as jobs (default: buffered)
        force (True or False): Replace destination if twofour wrote it (default: False)
        resume (True or False): Continue a run into destination that was interrupted, killed or failed: keep the finished
            weight files that match their hashes and write the rest again. A complete destination is verified (default:
            False)
        without_config (True or False): Take weights without config.json, too, which no engine loads (default: False)
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of source are read where the config says
            that there are none and others are stored: stored, as the config's format says; symmetric, 8 whatever is
            stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        stats (path): Choose weights by the statistics of their inputs in this file (lib/recipe/statistics/README.md,
            examples/statistics). Block scales are chosen with them (default: none: each weight for itself)
        strict_stats (True or False): Refuse statistics of other weights of the same model, as those of the BF16 model for
            its quantized copy, or of weights that nothing names (default: False)
        shrink (float): Share taken off products of two inputs (default: 0.5, with a pattern 0.1; by guided statistics
            0.2, with a pattern 0.05)
        scale_search (int): Codes tried above the largest weight's scale (0 to 16; default: 7; powers of two: 1)
        mask (path): prune by the masks of this file, as MaskLLM makes them: safetensors with M.mask or M, U8 or BOOL [N,
            K], for each module M that is pruned; 1 stays (default: masks are chosen)
        max_loss (float): Prune as much as stays below this expected loss, else as budget (default: any)
        html (path): With budget or max_loss: write a page about the choice, for a browser
        device ("cpu", "cuda", "auto"): Where weights are chosen by stats; the bytes are the same. cuda:1 is the second
            CUDA device. auto uses a CUDA device if there is one. All else runs on the CPU (default: auto)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Convert, the document `convert` of tools/JSON.md:
            layout (string): layout or format that was written; `graft`, `drop`
            device (string): `cpu` or `cuda`
            was_complete (boolean): `resume=True` found it complete
            files_kept (integer): weight files of an earlier run
            bytes_kept (integer)
            bytes_read (integer)
            bytes_written (integer)
            bytes_verified (integer): read back and compared
            seconds (number)
            files (integer): weight files
            tensors (integer)
            modules (list of module)
            findings (list of finding)
            recovery (recovery, optional): `compress(recover=...)`
        A documents.ConvertDryRun for convert(dry_run=True).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        Without stats the smallest codes of each group are dropped, and all else stays. With it the weights that are left are
        chosen anew to keep the output near to what NVFP4 gave: codes and block scales change, scales of matrices and of
        inputs stay.
    """
    return cast("documents.Convert", call(
        "prune", source, destination, progress=progress, pattern=pattern, method=method, sweeps=sweeps, budget=budget,
        include=include, exclude=exclude, also=also, max_shard_size=max_shard_size, dry_run=dry_run,
        no_verify=no_verify, check=check, cache=cache, cache_size=cache_size, follow_links=follow_links,
        no_readme=no_readme, io=io, force=force, resume=resume, without_config=without_config,
        zero_points=zero_points, stats=stats, strict_stats=strict_stats, shrink=shrink, scale_search=scale_search,
        mask=mask, max_loss=max_loss, html=html, device=device, jobs=jobs,
    ))  # fmt: skip


@explained
def compress(
    source: Path,
    destination: Path,
    *,
    to: Optional[Literal["nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "v7", "v7-packed", "g8"]] = None,
    pattern: Optional[Literal["2:4", "4:8-paired"]] = None,
    dialect: Optional[Literal["modelopt", "compressed-tensors"]] = None,
    recipe: Optional[Path] = None,
    bits: Optional[float] = None,
    size: Optional[Union[int, str]] = None,
    menu: Optional[Union[Literal["nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "bf16", "v7", "v7-packed", "g8"], Sequence[Literal["nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "bf16", "v7", "v7-packed", "g8"]]]] = None,
    for_: Optional[Literal["twofour", "vllm", "sglang", "tensorrt-llm"]] = None,
    sequential: Optional[Literal["group", "layer", "none"]] = None,
    token_weights: Optional[Path] = None,
    guided: bool = False,
    recover: Optional[str] = None,
    keep_stats: Optional[Path] = None,
    context: Optional[int] = None,
    limit: Optional[int] = None,
    method: Optional[Literal["joint", "gptq", "wanda", "rtn"]] = None,
    sweeps: Optional[int] = None,
    shrink: Optional[float] = None,
    scale_search: Optional[int] = None,
    budget: Optional[float] = None,
    budget_stats: Optional[Path] = None,
    html: Optional[Path] = None,
    include: Optional[Union[str, Sequence[str]]] = None,
    exclude: Optional[Union[str, Sequence[str]]] = None,
    also: Optional[Union[str, Sequence[str]]] = None,
    max_shard_size: Optional[Union[int, str]] = None,
    dry_run: bool = False,
    no_verify: bool = False,
    check: bool = False,
    follow_links: bool = False,
    no_readme: bool = False,
    io: Optional[Literal["buffered", "direct"]] = None,
    force: bool = False,
    resume: bool = False,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    tokens: Optional[Path] = None,
    text: Optional[Path] = None,
    device: Optional[str] = None,
    jobs: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Convert:
    """Collect statistics with a text, choose weights by them and write them, layer by layer.

    Example: twofour.compress("model", "artifact", text="book.txt", to="v7")

    Args:
        source (path): Hugging Face checkpoint directory
        destination (path): Directory to write; absent or empty
        to ("nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "v7", "v7-packed", "g8"): Layout or format to write, nvfp4 as
            quantize writes it
        pattern ("2:4", "4:8-paired"): nvfp4: prune to 2:4 or 4:8-paired (default: none; a layout has its own)
        dialect ("modelopt", "compressed-tensors"): nvfp4: names and configuration to write (default: modelopt)
        recipe (path): Rules in place of to: a YAML or JSON file, or a name
        bits (float): Choose formats by predicted loss: so many bits a weight in the mean, of codes and block scales.
            Linears that engines fuse get one format. dry_run=True prints the curve (1 to 32; default: the format that is
            asked for)
        size (int or str): Likewise, so many bytes of tensors: 90GB (default: any)
        menu ("nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "bf16", "v7", "v7-packed", "g8" or a list of such): Formats to
            choose among (default: nvfp4,fp8,mxfp6,mxfp4,bf16, as far as the engine loads them)
        for_ ("twofour", "vllm", "sglang", "tensorrt-llm"): Choose only what this engine loads (default: twofour)
        sequential ("group", "layer", "none"): Which model the statistics are of. group: one whose groups of linears
            before are compressed, as q, k and v are one; what it lacks by then goes into the targets. layer: the same
            layer by layer, in a third of the passes. none: the model as it is (default: group)
        token_weights (path): How much each token counts for each linear: M.token_weights F32 [windows, length], which
            examples/statistics/collect.py makes of gradients (default: 1)
        guided (True or False): Weigh tokens by gradients of the model's loss (default: False)
        recover (str): Then tune norms and global scales by the KL divergence from source, in at most so many passes over
            the windows, if it falls for held-out ones (1 to 1000; default: none)
        keep_stats (path): Keep the statistics in this file, for validate(source=..., stats=...) (default: none: they go)
        context (int): Tokens of a window (2 to 16777216; default: 1024, or the model's positions if fewer)
        limit (int): At most so many windows (1 to 1073741824; default: all)
        method ("joint", "gptq", "wanda", "rtn"): How weights are chosen, see help(twofour.quantize) (default: joint or
            gptq)
        sweeps (int): Sweeps of descent once weights are chosen (0 to 64; default: 4 with a pattern, fp8: 0, else 2)
        shrink (float): Share taken off products of two inputs (default: 0.5, with a pattern 0.1; by guided statistics
            0.2, with a pattern 0.05)
        scale_search (int): Codes tried above the largest weight's scale (0 to 16; default: 7; powers of two: 1)
        budget (float): Prune this share of the bytes, 0 to 1, the cheapest by budget_stats first (default: all is pruned)
        budget_stats (path): Statistics with fisher_hessian, which say what pruning costs the model and, with bits or
            size, formats; without it these rank by the Hessian (default: none: with budget required; with bits or size
            collected)
        html (path): Write a page with heat maps, histograms and findings, for a browser
        include (str or a list of such): Convert only these modules: name, glob or re:regex
        exclude (str or a list of such): Leave these modules as they are
        also (str or a list of such): Convert these modules too: shared experts, single linears
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        dry_run (True or False): Show what would be written, write nothing (default: False)
        no_verify (True or False): Do not read back what was written (default: False)
        check (True or False): If source is an artifact, first compare every tensor with the hashes in its twofour.json
            (default: False)
        follow_links (True or False): Copy files that links lead to outside of the checkpoint, too. Otherwise such links
            are refused: they could lead to a secret, and outputs are published (default: False)
        no_readme (True or False): Write no README.md about the output (TWOFOUR.md beside its author's README.md)
            (default: False)
        io ("buffered", "direct"): How files are read and written. buffered: through the page cache, evicting only the
            pages that this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as
            many requests in flight as jobs (default: buffered)
        force (True or False): Replace destination if twofour wrote it (default: False)
        resume (True or False): Continue a run into destination that was interrupted, killed or failed: keep the finished
            weight files that match their hashes and write the rest again. A complete destination is verified (default:
            False)
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of source are read where the config says
            that there are none and others are stored: stored, as the config's format says; symmetric, 8 whatever is
            stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        tokens (path): Token ids [W, T], I32 or I64, in safetensors or .npy: each row is a text of its own
        text (path): Text in UTF-8, which the model's tokenizer.json takes apart
        device ("cpu", "cuda", "auto"): Where to compute. cuda:1 is the second CUDA device. auto uses a CUDA device if
            there is one (default: auto)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Convert, the document `convert` of tools/JSON.md:
            layout (string): layout or format that was written; `graft`, `drop`
            device (string): `cpu` or `cuda`
            was_complete (boolean): `resume=True` found it complete
            files_kept (integer): weight files of an earlier run
            bytes_kept (integer)
            bytes_read (integer)
            bytes_written (integer)
            bytes_verified (integer): read back and compared
            seconds (number)
            files (integer): weight files
            tensors (integer)
            modules (list of module)
            findings (list of finding)
            recovery (recovery, optional): `compress(recover=...)`
        A documents.ConvertDryRun for convert(dry_run=True).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        Collects statistics of the inputs of a model's linears, chooses weights by them and writes them, linear by linear on
        the model as it is compressed so far. device says where it runs; lib/run/decoder/README.md lists the families.
        Backward passes of guided=True and recover run on the CPU, for all families but those with linear attention and
        DeepSeek-V4. What is collected is in destination.compressing until destination is whole; a run that ends early goes on
        behind its last whole layer with resume=True.
    """
    return cast("documents.Convert", call(
        "compress", source, destination, progress=progress, to=to, pattern=pattern, dialect=dialect, recipe=recipe,
        bits=bits, size=size, menu=menu, **{"for":for_}, sequential=sequential, token_weights=token_weights,
        guided=guided, recover=recover, keep_stats=keep_stats, context=context, limit=limit, method=method,
        sweeps=sweeps, shrink=shrink, scale_search=scale_search, budget=budget, budget_stats=budget_stats, html=html,
        include=include, exclude=exclude, also=also, max_shard_size=max_shard_size, dry_run=dry_run,
        no_verify=no_verify, check=check, follow_links=follow_links, no_readme=no_readme, io=io, force=force,
        resume=resume, zero_points=zero_points, tokens=tokens, text=text, device=device, jobs=jobs,
    ))  # fmt: skip


@explained
def graft(
    base: Path,
    donor: Path,
    destination: Path,
    take: Union[str, Sequence[str]],
    *,
    force: bool = False,
    resume: bool = False,
    max_shard_size: Optional[Union[int, str]] = None,
    dry_run: bool = False,
    no_verify: bool = False,
    follow_links: bool = False,
    no_readme: bool = False,
    io: Optional[Literal["buffered", "direct"]] = None,
    without_config: bool = False,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Convert:
    """Take modules of another checkpoint into a checkpoint: draft layers, an embedding, a layer.

    Example: twofour.graft("checkpoint", "donor", "grafted", take="mtp")

    Args:
        base (path): Hugging Face checkpoint directory that modules come into
        donor (path): Checkpoint directory or file that they come from
        destination (path): Directory to write; absent or empty
        take (str or a list of such): Modules or tensors of donor: name, glob, re:regex or role (mtp, head, embeddings,
            experts, attention, ...)
        force (True or False): Replace destination if twofour wrote it (default: False)
        resume (True or False): Continue a run into destination that was interrupted, killed or failed: keep the finished
            weight files that match their hashes and write the rest again. A complete destination is verified (default:
            False)
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        dry_run (True or False): Show what would be written, write nothing (default: False)
        no_verify (True or False): Do not read back what was written (default: False)
        follow_links (True or False): Copy files that links lead to outside of the checkpoint, too. Otherwise such links
            are refused: they could lead to a secret, and outputs are published (default: False)
        no_readme (True or False): Write no README.md about the output (TWOFOUR.md beside its author's README.md)
            (default: False)
        io ("buffered", "direct"): How files are read and written. buffered: through the page cache, evicting only the
            pages that this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as
            many requests in flight as jobs (default: buffered)
        without_config (True or False): Take weights without config.json, too, which no engine loads (default: False)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Convert, the document `convert` of tools/JSON.md:
            layout (string): layout or format that was written; `graft`, `drop`
            device (string): `cpu` or `cuda`
            was_complete (boolean): `resume=True` found it complete
            files_kept (integer): weight files of an earlier run
            bytes_kept (integer)
            bytes_read (integer)
            bytes_written (integer)
            bytes_verified (integer): read back and compared
            seconds (number)
            files (integer): weight files
            tensors (integer)
            modules (list of module)
            findings (list of finding)
            recovery (recovery, optional): `compress(recover=...)`
        A documents.ConvertDryRun for convert(dry_run=True).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        Every tensor of donor that matches comes, byte for byte. The tensors of base that match, or belong to a module that
        comes, go; all others stay as they are. config.json and hf_quant_config.json of base are kept, but for the count of
        draft layers, lists with an entry a layer, what says whether there are modules of a kind (n_shared_experts), and what
        says how the modules that come are quantized. What these cannot say is refused, and so are shapes that do not fit
        base. Where nothing of base is replaced, twofour.drop() of all that came gives base's files back, byte for byte.
        twofour.validate(destination, source=base, donor=donor) proves the result.
    """
    return cast("documents.Convert", call(
        "graft", base, donor, destination, progress=progress, take=take, force=force, resume=resume,
        max_shard_size=max_shard_size, dry_run=dry_run, no_verify=no_verify, follow_links=follow_links,
        no_readme=no_readme, io=io, without_config=without_config, jobs=jobs, device=device,
    ))  # fmt: skip


@explained
def drop(
    source: Path,
    destination: Path,
    *,
    force: bool = False,
    resume: bool = False,
    max_shard_size: Optional[Union[int, str]] = None,
    dry_run: bool = False,
    no_verify: bool = False,
    follow_links: bool = False,
    no_readme: bool = False,
    io: Optional[Literal["buffered", "direct"]] = None,
    without_config: bool = False,
    modules: Optional[Union[str, Sequence[str]]] = None,
    experts: Optional[Union[int, Path]] = None,
    by: Optional[Path] = None,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Convert:
    """Drop modules or experts of a checkpoint, all other bytes as they are.

    Example: twofour.drop("checkpoint", "smaller", experts=96, by="saliency.safetensors")

    Args:
        source (path): Hugging Face checkpoint directory
        destination (path): Directory to write; absent or empty
        force (True or False): Replace destination if twofour wrote it (default: False)
        resume (True or False): Continue a run into destination that was interrupted, killed or failed: keep the finished
            weight files that match their hashes and write the rest again. A complete destination is verified (default:
            False)
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        dry_run (True or False): Show what would be written, write nothing (default: False)
        no_verify (True or False): Do not read back what was written (default: False)
        follow_links (True or False): Copy files that links lead to outside of the checkpoint, too. Otherwise such links
            are refused: they could lead to a secret, and outputs are published (default: False)
        no_readme (True or False): Write no README.md about the output (TWOFOUR.md beside its author's README.md)
            (default: False)
        io ("buffered", "direct"): How files are read and written. buffered: through the page cache, evicting only the
            pages that this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as
            many requests in flight as jobs (default: buffered)
        without_config (True or False): Take weights without config.json, too, which no engine loads (default: False)
        modules (str or a list of such): Modules or tensors that go: name, glob, re:regex or role (mtp, head, ...); of the
            layers the last alone
        experts (int or path): Experts that stay in each layer: a number, with by, or a JSON file {"BLOCK": [numbers]}
        by (path): Safetensors file with BLOCK.saliency F32 [E] for each block of experts; the largest stay, on a tie the
            lower number, and with groups of experts equally many of each
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Convert, the document `convert` of tools/JSON.md:
            layout (string): layout or format that was written; `graft`, `drop`
            device (string): `cpu` or `cuda`
            was_complete (boolean): `resume=True` found it complete
            files_kept (integer): weight files of an earlier run
            bytes_kept (integer)
            bytes_read (integer)
            bytes_written (integer)
            bytes_verified (integer): read back and compared
            seconds (number)
            files (integer): weight files
            tensors (integer)
            modules (list of module)
            findings (list of finding)
            recovery (recovery, optional): `compress(recover=...)`
        A documents.ConvertDryRun for convert(dry_run=True).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        BLOCK is the name above the experts: model.layers.3.mlp.experts. Experts that stay are numbered anew in their order,
        or sliced out of stacks; nothing is quantized again. The router's rows, its biases, the counts in config.json and what
        names single modules follow. Draft layers have experts too: drop them first, or give their saliency. Where all modules
        of a kind go, config.json says that there are none (n_shared_experts, q_lora_rank, biases), and where the last
        quantized module goes, nothing of quantization. A configuration by which an engine would find another format than a
        module has is refused. twofour.validate(destination, source=source) proves the result.
    """
    return cast("documents.Convert", call(
        "drop", source, destination, progress=progress, force=force, resume=resume, max_shard_size=max_shard_size,
        dry_run=dry_run, no_verify=no_verify, follow_links=follow_links, no_readme=no_readme, io=io,
        without_config=without_config, modules=modules, experts=experts, by=by, jobs=jobs, device=device,
    ))  # fmt: skip


@explained
def repair(
    source: Path,
    destination: Path,
    *,
    donor: Optional[Path] = None,
    only: Optional[Union[str, Sequence[str]]] = None,
    fold: Optional[Literal["larger"]] = None,
    input_scale: Optional[str] = None,
    profile: Optional[Literal["strict", "serve", "publish"]] = None,
    force: bool = False,
    resume: bool = False,
    max_shard_size: Optional[Union[int, str]] = None,
    dry_run: bool = False,
    no_verify: bool = False,
    cache: Optional[Path] = None,
    cache_size: Optional[Union[int, str]] = None,
    follow_links: bool = False,
    no_readme: bool = False,
    io: Optional[Literal["buffered", "direct"]] = None,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Repair:
    """Mend what lint finds in a checkpoint, and copy every other byte.

    Example: twofour.repair("checkpoint", "mended", donor="original")

    Args:
        source (path): Hugging Face checkpoint directory, or hf://org/name[@revision] or https://
        destination (path): Directory to write; absent or empty
        donor (path): Checkpoint of the same model that gives lost or broken modules, tokenizers and configs
        only (str or a list of such): Mend only findings of these rules: ids or globs (default: all rules)
        fold ("larger"): Give fused linears the larger of unequal global scales, at a stated loss (default: none is
            folded)
        input_scale (str): Scales for linears without a valid one: of neighbours, constant=X (1.0 is an amax of 2688), or
            'from FILE' with M.amax of each module (default: neighbours)
        profile ("strict", "serve", "publish"): Severities of what is left, as of lint (default: those of the rules)
        force (True or False): Replace destination if twofour wrote it (default: False)
        resume (True or False): Continue a run into destination that was interrupted, killed or failed: keep the finished
            weight files that match their hashes and write the rest again. A complete destination is verified (default:
            False)
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        dry_run (True or False): Show what would be written, write nothing (default: False)
        no_verify (True or False): Do not read back what was written (default: False)
        cache (path): If source is a URL: where its weight files are while they are read. They are removed at the end of a
            run that succeeds, and kept for resume=True by one that does not (default: XDG_CACHE_HOME/twofour,
            ~/.cache/twofour)
        cache_size (int or str): Most bytes of files in cache, such as 20GB or 16GiB (default: 32GB)
        follow_links (True or False): Copy files that links lead to outside of the checkpoint, too. Otherwise such links
            are refused: they could lead to a secret, and outputs are published (default: False)
        no_readme (True or False): Write no README.md about the output (TWOFOUR.md beside its author's README.md)
            (default: False)
        io ("buffered", "direct"): How files are read and written. buffered: through the page cache, evicting only the
            pages that this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as
            many requests in flight as jobs (default: buffered)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Repair, the document `repair` of tools/JSON.md:
            mends (list of mend): in the order in which they were applied
            unmended (list of finding): what is beyond repair, and why
            left (list of finding): what lint finds in the result
            mended (boolean): whether no warning and no error is left
            written (written, optional): the run

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        twofour.lint(explain=RULE) says whether findings of a rule are mended. The order of mends is fixed, and each is
        applied whole or not. Exit code 1 where destination keeps a warning or error. Where nothing is mended, nothing is
        written. twofour.validate(destination, source=source) [donor PATH] proves the result.
    """
    return cast("documents.Repair", call(
        "repair", source, destination, progress=progress, donor=donor, only=only, fold=fold, input_scale=input_scale,
        profile=profile, force=force, resume=resume, max_shard_size=max_shard_size, dry_run=dry_run,
        no_verify=no_verify, cache=cache, cache_size=cache_size, follow_links=follow_links, no_readme=no_readme,
        io=io, jobs=jobs, device=device,
    ))  # fmt: skip


@explained
def validate(
    artifact: Path,
    *,
    source: Optional[Path] = None,
    donor: Optional[Path] = None,
    stats: Optional[Path] = None,
    mask: Optional[Path] = None,
    all_rows: bool = False,
    tokens: Optional[int] = None,
    all_layers: bool = False,
    seed: Optional[int] = None,
    html: Optional[Path] = None,
    io: Optional[Literal["buffered", "direct"]] = None,
    device: Optional[str] = None,
    jobs: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Validate:
    """Prove an artifact, from its source or by its own hashes.

    Example: twofour.validate("artifact", source="checkpoint")

    Args:
        artifact (path): Artifact to check
        source (path): Checkpoint that the artifact was made from
        donor (path): With source, of what graft or repair wrote: the checkpoint that modules came from
        stats (path): With source, of what quantize(stats=...) wrote: the statistics file (default: none: rows that
            statistics chose are not solved again)
        mask (path): With source, of what mask of other commands pruned: the file of masks (default: none)
        all_rows (True or False): With stats, solve all rows again, not 64 of each matrix (default: False)
        tokens (int): Tokens to run through each layer, each through as many experts as the model picks; 0 runs no layer
            (0 to 4096; default: 2, through at most 4 experts)
        all_layers (True or False): Run every layer, not only the first, the last and 2 between (default: False)
        seed (int): Seed of the layers, experts, activations and routing that are run (default: 0)
        html (path): Write a page with heat maps, histograms and findings, for a browser
        io ("buffered", "direct"): How files are read and written. buffered: through the page cache, evicting only the
            pages that this run added. direct: past the page cache (O_DIRECT) where the file system supports it, with as
            many requests in flight as jobs (default: buffered)
        device ("cpu", "cuda", "auto"): Where to compute. cuda:1 is the second CUDA device. auto uses a CUDA device if
            there is one (default: auto)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Validate, the document `validate` of tools/JSON.md:
            valid (boolean): whether there are no differences
            device (string)
            tensors (integer)
            bytes (integer)
            seconds (number)
            recovered_tensors (integer, optional): learned by `compress(recover=...)`: held by hash
            solved_rows (solved rows, optional): of what quantize `stats` wrote
            without_statistics (boolean, optional): true: with `source` and without `stats`, of such an artifact
            source_tensors (integer, optional): with `source`, as the next five; of a donor, too
            source_bytes (integer, optional)
            weights (list of pruned matrix, optional)
            values (list of converted matrix, optional)
            layers (list of layer, optional): layers run on the CPU
            layer_coverage (coverage, optional)
            device_layers (list of device layer, optional): layers run on a CUDA device, as the next
            device_layer_coverage (coverage, optional)
            sample (sample, optional): where layers are run
            mends (list of proven mend, optional): with `source`, of what repair wrote
            differences (list of finding)
            notes (list of finding)

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        Without source, every byte is read and compared with the hashes in twofour.json. That finds damage, not a wrong
        conversion. With source, every tensor of the source is accounted for, every byte is derived again by slow code that
        the converter does not use, and layers are run against a reference in double precision. Of what graft or drop wrote,
        source is BASE or SRC: each tensor is traced back to the bytes of its source, and counts, lists and quantization
        entries of the configs are compared with the tensors.
    """
    return cast("documents.Validate", call(
        "validate", artifact, progress=progress, source=source, donor=donor, stats=stats, mask=mask,
        all_rows=all_rows, tokens=tokens, all_layers=all_layers, seed=seed, html=html, io=io, device=device,
        jobs=jobs,
    ))  # fmt: skip


@explained
def eval(
    path: Path,
    *,
    against: Optional[Path] = None,
    context: Optional[int] = None,
    stride: Optional[int] = None,
    limit: Optional[int] = None,
    dry_run: bool = False,
    html: Optional[Path] = None,
    tokens: Optional[Path] = None,
    text: Optional[Path] = None,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    device: Optional[str] = None,
    jobs: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Eval:
    """Measure how well a whole model predicts tokens, and how far it is from another.

    Example: twofour.eval("artifact", tokens="tokens.safetensors", against="checkpoint")

    Args:
        path (path): Checkpoint or artifact: a whole model
        against (path): Another checkpoint or artifact with the same vocabulary, which counts as the truth
        context (int): Tokens that the model sees at a time (2 to 16777216; default: 1024, or the model's positions if
            fewer)
        stride (int): Tokens from one window of a text to the next (1 to 16777216; default: half of context)
        limit (int): At most so many windows (1 to 1073741824; default: all)
        dry_run (True or False): Say what would be read, and how much memory that takes (default: False)
        html (path): Write a page with heat maps, histograms and findings, for a browser
        tokens (path): Token ids [W, T], I32 or I64, in safetensors or .npy: each row is a text of its own
        text (path): Text in UTF-8, which the model's tokenizer.json takes apart
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of both models are read where the config
            says that there are none and others are stored: stored, as the config's format says; symmetric, 8 whatever is
            stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        device ("cpu", "cuda", "auto"): Where to compute. cuda:1 is the second CUDA device. auto uses a CUDA device if
            there is one (default: auto)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Eval, the document `eval` of tools/JSON.md:
            path (string)
            family (string): `model_type` of its config.json
            device (string)
            windows (integer)
            predictions (integer): tokens that were predicted
            loss (number): mean negative log-likelihood, nats
            loss_error (number): its standard error, predictions taken as independent
            perplexity (number or null): exp of `loss`; null beyond 1.8e308, as the next
            perplexity_error (number or null)
            seconds (number)
            against (other model, optional): with `against`
            positions (list of positions)
            worst (list of prediction): by divergence; without `against` by loss
        A documents.EvalDryRun for eval(dry_run=True).

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.
    """
    return cast("documents.Eval", call(
        "eval", path, progress=progress, against=against, context=context, stride=stride, limit=limit,
        dry_run=dry_run, html=html, tokens=tokens, text=text, zero_points=zero_points, device=device, jobs=jobs,
    ))  # fmt: skip


@explained
def generate(
    path: Path,
    prompt: str,
    *,
    against: Optional[Path] = None,
    max_tokens: Optional[int] = None,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    device: Optional[str] = None,
    jobs: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Generate:
    """Continue a text with a whole model, greedily.

    Example: twofour.generate("artifact", prompt="Once upon a time", against="checkpoint")

    Args:
        path (path): Checkpoint or artifact: a whole model with its tokenizer.json
        prompt (str): Text to continue; no chat template is put around it
        against (path): Another checkpoint or artifact, which continues the same tokens
        max_tokens (int): At most so many tokens (1 to 16777216; default: 64)
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of both models are read where the config
            says that there are none and others are stored: stored, as the config's format says; symmetric, 8 whatever is
            stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        device ("cpu", "cuda", "auto"): Where to compute. cuda:1 is the second CUDA device. auto uses a CUDA device if
            there is one (default: auto)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Generate, the document `generate` of tools/JSON.md:
            path (string)
            text (string): what was generated
            ended (boolean): by a token that ends a text
            seconds (number)
            tokens (list of generated token)
            prompt_tokens (integer)
            device (string)
            against (continuation, optional): with `against`, as the next
            parts_at (integer or null, optional): the first token that differs; null: none

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.
    """
    return cast("documents.Generate", call(
        "generate", path, progress=progress, prompt=prompt, against=against, max_tokens=max_tokens,
        zero_points=zero_points, device=device, jobs=jobs,
    ))  # fmt: skip


@explained
def card(
    artifact: Path,
    *,
    base_model: Optional[str] = None,
    quantized_by: Optional[str] = None,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Card:
    """Write the model card of an artifact: recipe, figures, hashes, how to load it.

    Example: twofour.card("artifact", base_model="org/model")

    Args:
        artifact (path): Artifact that twofour wrote
        base_model (str): Model that was converted, as the Hub names it (default: not stated)
        quantized_by (str): Who converted it (default: not stated)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Card, the document `card` of tools/JSON.md:
            text (string): the card, Markdown

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        The license is that of the README.md that came along from the source. Write the card to another file than that: a
        shell empties a file before the command reads it, and twofour.json has its hash.
    """
    return cast("documents.Card", call(
        "card", artifact, progress=progress, base_model=base_model, quantized_by=quantized_by, jobs=jobs,
        device=device,
    ))  # fmt: skip


@overload
def stats(
    action: Literal["inspect", "collect", "merge", "import"], *arguments: Path, output: Optional[Path] = None, context: Optional[int] = None, limit: Optional[int] = None, held_out: Optional[int] = None, fisher: bool = False, guided: bool = False, zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None, dry_run: bool = False, strict_stats: bool = False, force: bool = False, tokens: Optional[Path] = None, text: Optional[Path] = None, device: Optional[str] = None, jobs: Optional[int] = None, progress: Optional[ProgressCallback] = None,
) -> documents.StatsInspect: ...


@overload
def stats(
    action: Literal["check"], *arguments: Path, output: Optional[Path] = None, context: Optional[int] = None, limit: Optional[int] = None, held_out: Optional[int] = None, fisher: bool = False, guided: bool = False, zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None, dry_run: bool = False, strict_stats: bool = False, force: bool = False, tokens: Optional[Path] = None, text: Optional[Path] = None, device: Optional[str] = None, jobs: Optional[int] = None, progress: Optional[ProgressCallback] = None,
) -> documents.StatsCheck: ...
@explained
def stats(
    action: Literal["collect", "inspect", "check", "merge", "import"],
    *arguments: Path,
    output: Optional[Path] = None,
    context: Optional[int] = None,
    limit: Optional[int] = None,
    held_out: Optional[int] = None,
    fisher: bool = False,
    guided: bool = False,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    dry_run: bool = False,
    strict_stats: bool = False,
    force: bool = False,
    tokens: Optional[Path] = None,
    text: Optional[Path] = None,
    device: Optional[str] = None,
    jobs: Optional[int] = None,
    progress: Optional[ProgressCallback] = None,
) -> Any:
    """Collect, check, merge or import statistics of inputs, by which quantize(stats=...) chooses weights.

    Example: twofour.stats("check", "stats.safetensors", "checkpoint")

    Args:
        action ("collect", "inspect", "check", "merge", "import"): collect MODEL; inspect FILE; check FILE CHECKPOINT;
            merge OUT FILE FILE ...; import OUT IMATRIX CHECKPOINT
        arguments (path): Files and checkpoints; ACTION says which and how many
        output (path): collect: statistics file to write
        context (int): collect: tokens of a window; a last window of one token is left out (2 to 16777216; default: 1024,
            or the model's positions if fewer)
        limit (int): collect: at most so many windows (1 to 1073741824; default: all)
        held_out (int): collect: windows at the end of which the sums are kept apart (0 to 1073741824; default: 0)
        fisher (True or False): collect: fisher_hessian and fisher_rows as well, by a backward pass: what a change costs
            the model, for budget (default: False)
        guided (True or False): collect: weigh each token by the root of the squared gradient of the loss in a linear's
            outputs, by a backward pass (default: False)
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of the model that collect runs are read
            where the config says that there are none and others are stored: stored, as the config's format says;
            symmetric, 8 whatever is stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a
            module)
        dry_run (True or False): collect: say what would be written, and how much memory that takes (default: False)
        strict_stats (True or False): check: refuse statistics of other weights of the same model, or of weights that
            nothing names (default: False)
        force (True or False): collect, merge, import: replace the file if it is a statistics file (default: False)
        tokens (path): Token ids [W, T], I32 or I64, in safetensors or .npy: each row is a text of its own
        text (path): Text in UTF-8, which the model's tokenizer.json takes apart
        device ("cpu", "cuda", "auto"): Where to compute. cuda:1 is the second CUDA device. auto uses a CUDA device if
            there is one (default: auto)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.StatsInspect, the document `stats inspect` of tools/JSON.md:
            path (string)
            hash_xxh3_128 (string): of the file
            structure (string): hash of linears and K
            weights (string): hash of the final norm
            tokens (string)
            text (string)
            weighting (string)
            input (string): hash of model, tokens, their weights and the order of collecting, of `compress`
            predecessor (string): of sequential runs
            entries (list of statistics entry)
            heldout_entries (list of statistics entry)
        A documents.StatsCollectDryRun for stats collect dry_run=True.
        A documents.StatsCheck for stats check.

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        A statistics file says which inputs each linear saw; quantize(stats=...) chooses weights by it.
        lib/recipe/statistics/README.md describes it. collect runs a whole model where device says (lib/run/decoder/README.md
        lists the families) and writes one; examples/statistics makes one with transformers. A backward pass runs on the CPU,
        behind a pass where device says, for all families but those with linear attention and DeepSeek-V4. All else runs on
        the CPU. check says what of a checkpoint a file serves, and reads all sums and targets. It ends with 1 where linears
        have no statistics, too few tokens, inputs that are all 0, or statistics of other weights, and with 2 where the file
        is of another model or holds numbers that are no statistics of it. merge adds the sums of runs over different texts,
        and never averages. import takes the sums of squares of an importance matrix of llama.cpp (GGUF), which serve wanda
        and rtn. It holds no hash of the weights that it is of.
    """
    return call(
        "stats", action, *arguments, progress=progress, output=output, context=context, limit=limit,
        held_out=held_out, fisher=fisher, guided=guided, zero_points=zero_points, dry_run=dry_run,
        strict_stats=strict_stats, force=force, tokens=tokens, text=text, device=device, jobs=jobs,
    )  # fmt: skip


@overload
def recipes(
    name: Literal["nvfp4-experts", "nvfp4-experts-and-mtp", "nvfp4-all", "w4a4-experts", "w4a16", "fp8-attention-nvfp4-experts", "deepseek-v4-nvfp4", "mxfp4-to-fp8", "mxfp4-to-mxfp8", "bf16", "modelopt", "compressed-tensors", "pruned-experts", "nvfp4-pruned-experts", "v7-experts", "v7-packed-experts", "g8-experts"], *, jobs: Optional[int] = None, device: Optional[str] = None, progress: Optional[ProgressCallback] = None,
) -> documents.RecipesName: ...


@overload
def recipes(
    name: None = None, *, jobs: Optional[int] = None, device: Optional[str] = None, progress: Optional[ProgressCallback] = None,
) -> documents.Recipes: ...
@explained
def recipes(
    name: Optional[Literal["nvfp4-experts", "nvfp4-experts-and-mtp", "nvfp4-all", "w4a4-experts", "w4a16", "fp8-attention-nvfp4-experts", "deepseek-v4-nvfp4", "mxfp4-to-fp8", "mxfp4-to-mxfp8", "bf16", "modelopt", "compressed-tensors", "pruned-experts", "nvfp4-pruned-experts", "v7-experts", "v7-packed-experts", "g8-experts"]] = None,
    *,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> Any:
    """List or print the recipes that recipe knows by name.

    Example: twofour.recipes("nvfp4-experts")

    Args:
        name ("nvfp4-experts", "nvfp4-experts-and-mtp", "nvfp4-all", "w4a4-experts", "w4a16",
            "fp8-attention-nvfp4-experts", "deepseek-v4-nvfp4", "mxfp4-to-fp8", "mxfp4-to-mxfp8", "bf16", "modelopt",
            "compressed-tensors", "pruned-experts", "nvfp4-pruned-experts", "v7-experts", "v7-packed-experts",
            "g8-experts", or None): Recipe to print; without one, all are listed
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Recipes, the document `recipes` of tools/JSON.md:
            recipes (list of recipe)
        A documents.RecipesName for recipes NAME.

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        A recipe is a file in YAML or JSON. Keys of the file:
            format: 1; required
            dialect: modelopt, compressed-tensors, deepseek or deepseek-v4; names and configuration of the whole output
                (default: the source's)
            zero_points: stored, symmetric or v2; how zero points of INT4 are read, as zero_points, which overrides it
                (default: as the config states)
            rules: a list; required, at least one; the first that takes a module decides
            max_shard_size: 5GB, 500MB; as max_shard_size, which overrides it (default: 5GB)
            readme: true, false; false: as no_readme=True (default: true)

        Keys of a rule:
            match: see below; required
            to: keep, bf16, fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8; required
            granularity: tensor, row or block; with to: fp8: which weights share a scale (default: row; with dialect deepseek,
                block or scale_dtype: block)
            block: 128x128, 32x32 or 1x128; with to: fp8: rows and inputs of a block (default: 128x128)
            scale_dtype: f32, bf16 or e8m0; with to: fp8: type of the scales of blocks (default: f32; of DeepSeek-V4 e8m0
                beside experts that stay in four bits)
            odd_blocks: refuse, keep or write; with to: fp8: linears with N or K that is no multiple of 128, which engines
                refuse in blocks (default: refuse)
            exact: best, strict or off; with to: fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8: casts between formats:
                the best that the new one holds; refused if that loses anything; or sources taken as floats (default: best)
            arithmetic: modelopt or compressed-tensors; with to: mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8: rounding to
                reproduce bit for bit (default: the dialect's)
            block_scale: max, mse or four-over-six; with to: nvfp4, v7, v7-packed or g8: how the scale of 16 weights is chosen
                (default: max)
            zero_block: producer or zero; with to: nvfp4, v7, v7-packed or g8: what is written if a block's scale rounds to
                zero (default: producer)
            pattern: 2:4 or 4:8-paired; with to: keep or nvfp4: prune; nvfp4 before quantizing, where 4:8-paired needs
                convert(stats=...); keep NVFP4 as it is (default: none)
            method: joint, gptq, wanda, rtn or magnitude; with to: keep, fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8:
                how weights are chosen by convert(stats=...): joint or wanda with pattern or a layout that holds one, gptq or
                rtn without; magnitude leaves the statistics out (default: as quantize(method=...))
            sweeps: 0 to 64; with to: keep, fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8: sweeps of descent (default:
                as quantize(sweeps=...))
            shrink: 0 to 1; with to: keep, fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8: share taken off products of
                two inputs (default: as quantize(shrink=...))
            scale_search: 0 to 16; with to: keep, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8: codes tried above the
                largest weight's scale (default: 7; powers of two: 1)
            input_scale: keep, none, constant, constant=NUMBER, neighbours or from FILE; with to: keep or nvfp4: scales of
                inputs, as input_scale; NVFP4 that a rule to: nvfp4 matches keeps those it has (default: as input_scale)
            one_input_scale_a_layer: true or false; with to: keep or nvfp4: experts of a layer share the largest (default:
                false)
            draft_experts: keep or cast; with to: bf16, fp8, mxfp8, mxfp6, mxfp4, nvfp4, v7, v7-packed or g8: experts of
                layers that predict further tokens stay as they are, or are chosen as the others are (default: chosen by name,
                not as experts)
            fold: larger, strict or any; with to: v7, v7-packed or g8: as fold (default: larger)

        match is one of these, or a list of them:
            a role: experts, shared-experts, router, attention, linear-attention, mlp, mtp, head, embeddings: all modules that
                have it
            a module's name: model.layers.0.mlp.down_proj: this module
            a glob: "*.mlp.*", in quotes: what of it the rule takes by default
            re: and an expression: 're:.*\\.mlp\\..*': likewise
        Globs and expressions reach no router, head, norm or embedding, except with to: keep and to: bf16; names and roles do.
        What no rule takes stays as it is. A name or pattern that matches nothing is an error, and so are roles of which the
        model has none. Messages count rules[0] as the first, dry_run=True calls it rule 1.

        Attention to FP8, dense MLPs and experts to NVFP4, for compressed-tensors:
          format: 1
          dialect: compressed-tensors
          rules:
            - {match: [attention, linear-attention], to: fp8, granularity: row}
            - {match: [mlp, experts], to: nvfp4, block_scale: mse}

        The first layer as it is, all other experts to v7:
          format: 1
          rules:
            - {match: "model.layers.0.*", to: keep}
            - {match: experts, to: v7}
    """
    return call(
        "recipes", name, progress=progress, jobs=jobs, device=device,
    )  # fmt: skip


@explained
def plan(
    source: Path,
    destination: Path,
    output: Path,
    *,
    to: Optional[Literal["v7", "v7-packed", "g8", "nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "bf16", "prune", "quantize"]] = None,
    dialect: Optional[Literal["modelopt", "compressed-tensors", "deepseek", "deepseek-v4"]] = None,
    pattern: Optional[Literal["2:4", "4:8-paired"]] = None,
    block_scale: Optional[Literal["max", "mse", "four-over-six"]] = None,
    zero_block: Optional[Literal["producer", "zero"]] = None,
    donor: Optional[Path] = None,
    take: Optional[Union[str, Sequence[str]]] = None,
    tasks: Optional[int] = None,
    include: Optional[Union[str, Sequence[str]]] = None,
    exclude: Optional[Union[str, Sequence[str]]] = None,
    also: Optional[Union[str, Sequence[str]]] = None,
    max_shard_size: Optional[Union[int, str]] = None,
    follow_links: bool = False,
    no_readme: bool = False,
    without_config: bool = False,
    zero_points: Optional[Literal["stored", "symmetric", "v2"]] = None,
    fold: Optional[Literal["larger", "strict", "any"]] = None,
    granularity: Optional[Literal["tensor", "row", "block"]] = None,
    block: Optional[str] = None,
    scale_dtype: Optional[str] = None,
    odd_blocks: Optional[Literal["refuse", "keep", "write"]] = None,
    arithmetic: Optional[Literal["modelopt", "compressed-tensors"]] = None,
    exact: Optional[Literal["best", "strict", "off"]] = None,
    input_scale: Optional[str] = None,
    one_input_scale_a_layer: bool = False,
    draft_experts: Optional[Literal["keep", "cast"]] = None,
    keep_global_scale: Optional[Path] = None,
    recipe: Optional[Path] = None,
    stats: Optional[Path] = None,
    strict_stats: bool = False,
    method: Optional[Literal["joint", "gptq", "wanda", "rtn", "magnitude"]] = None,
    sweeps: Optional[int] = None,
    shrink: Optional[float] = None,
    scale_search: Optional[int] = None,
    mask: Optional[Path] = None,
    budget: Optional[float] = None,
    max_loss: Optional[float] = None,
    html: Optional[Path] = None,
    modules: Optional[Union[str, Sequence[str]]] = None,
    experts: Optional[Union[int, Path]] = None,
    by: Optional[Path] = None,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Plan:
    """Plan a conversion that several tasks or machines share.

    Example: twofour.plan("checkpoint", "artifact", to="v7", tasks=16, output="plan.json")

    Args:
        source (path): Hugging Face checkpoint directory, or hf://org/name[@revision] or https://
        destination (path): Directory to write; absent or empty
        to ("v7", "v7-packed", "g8", "nvfp4", "fp8", "mxfp8", "mxfp6", "mxfp4", "bf16", "prune", "quantize"): Layout or
            format to write; see below
        dialect ("modelopt", "compressed-tensors", "deepseek", "deepseek-v4"): Names and configuration to write; deepseek
            with fp8 only (default: nvfp4: the dialect that the source does not have, for an artifact that of its source;
            fp8 and mxfp6: compressed-tensors; mxfp8 and mxfp4: modelopt; quantize: modelopt)
        pattern ("2:4", "4:8-paired"): 2:4 keeps two codes of each four, 4:8-paired two aligned pairs of each eight; with
            quantize, 2:4 prunes the weights before quantizing, so that block scales fit the kept weights, and reports the
            gain; with stats both patterns are chosen by it (default: prune: 2:4; quantize: none)
        block_scale ("max", "mse", "four-over-six"): How the scale of 16 weights is chosen: max fits the largest weight;
            mse tries all and takes the one with the least squared error; four-over-six takes the better of two. No
            producer has the last two in compressed-tensors' arithmetic. Layouts and quantize only (default: max)
        zero_block ("producer", "zero"): What to write for a block if its scale rounds to zero: producer writes the scale
            that the producer writes, zero writes a zero scale and zero codes. Layouts and quantize only (default:
            producer)
        donor (path): graft: checkpoint directory or file that modules come from
        take (str or a list of such): Modules or tensors of donor, as twofour.graft() takes them into source: name, glob,
            re:regex or role (mtp, head, embeddings, experts, attention, ...)
        output (path): Plan to write, for twofour.convert(plan=...)
        tasks (int): Show how evenly the work divides among this many tasks (1 to 1000000)
        include (str or a list of such): Convert only these modules: name, glob or re:regex
        exclude (str or a list of such): Leave these modules as they are
        also (str or a list of such): Convert these modules too: shared experts, single linears
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        follow_links (True or False): Copy files that links lead to outside of the checkpoint, too. Otherwise such links
            are refused: they could lead to a secret, and outputs are published (default: False)
        no_readme (True or False): Write no README.md about the output (TWOFOUR.md beside its author's README.md)
            (default: False)
        without_config (True or False): Take weights without config.json, too, which no engine loads (default: False)
        zero_points ("stored", "symmetric", "v2"): How the zero points of INT4 of source are read where the config says
            that there are none and others are stored: stored, as the config's format says; symmetric, 8 whatever is
            stored; v2, without the 1 that GPTQ's first version adds (default: refuse such a module)
        fold ("larger", "strict", "any"): What to do if gate and up have different global scales: a layout stores one.
            larger folds both to the larger and refuses if that changes a matrix by more than 10 %; strict refuses; any
            folds at any cost (default: larger)
        granularity ("tensor", "row", "block"): fp8: which weights share a scale. block is the only choice for deepseek
            and deepseek-v4 (default: row; deepseek, deepseek-v4 and with block: block)
        block (str): fp8: rows and columns of blocks, 128x128, 32x32 or 1x128; modelopt has the first alone (default:
            128x128)
        scale_dtype (str): fp8: type of the scales, f32, bf16 or e8m0 (powers of two, for blocks). modelopt has f32 alone,
            compressed-tensors and deepseek f32 and bf16, deepseek-v4 f32 and e8m0 (default: f32; deepseek-v4: e8m0 beside
            experts that stay in four bits)
        odd_blocks ("refuse", "keep", "write"): fp8: what to do about linears with N or K that is no multiple of 128,
            which engines refuse in blocks: refuse them too; keep them as they are; write them for an engine that takes
            them (default: refuse)
        arithmetic ("modelopt", "compressed-tensors"): Rounding to reproduce bit for bit: ModelOpt's (0.45 and later) or
            llm-compressor's (default: the dialect's)
        exact ("best", "strict", "off"): What to do about sources in MXFP4 and NVFP4, which other formats often hold
            without loss: best keeps the values where that is so, and counts where not; strict refuses quantized sources
            that lose anything; off quantizes them as if they were floats (default: best)
        input_scale (str): nvfp4, quantize: scales of activations, which W4A4 kernels need. keep those of the source;
            none; constant=X for every module (1.0 is an amax of 2688); neighbours: modules without one take the largest
            of their projection in the layer; from FILE, a safetensors file with M.amax F32 [] for each module M
            (examples/input_scales) (default: nvfp4: keep; quantize: none; deepseek-v4: neighbours, and 1.0 where the
            layer has none)
        one_input_scale_a_layer (True or False): Experts of a layer share the largest input scale, of gate and up and of
            down, as kernels fuse them (default: False)
        draft_experts ("keep", "cast"): Routed experts of layers that predict further tokens (DeepSeek-V4's mtp): keep
            leaves them as they are, which SGLang reads beside NVFP4 experts; cast converts them as the others, which vLLM
            expects (default: as include and also say)
        keep_global_scale (path): Take the global scales from this NVFP4 checkpoint (directory or file), matched by module
            name, and compare all codes and block scales with its own. A weight of -0 stays -0
        recipe (path): Rules in place of to: a YAML or JSON file, a name that twofour.recipes() lists, or the twofour.json
            of an artifact; see help(twofour.recipes)
        stats (path): Choose weights by the statistics of their inputs in this file (lib/recipe/statistics/README.md,
            examples/statistics). Block scales are chosen with them (default: none: each weight for itself)
        strict_stats (True or False): Refuse statistics of other weights of the same model, as those of the BF16 model for
            its quantized copy, or of weights that nothing names (default: False)
        method ("joint", "gptq", "wanda", "rtn", "magnitude"): How: joint chooses mask, scales and codes together, gptq
            the last two without a pattern; wanda and rtn read the diagonal alone; magnitude leaves the statistics out
            (default: joint or gptq where the file holds a full Hessian of enough tokens, else wanda or rtn)
        sweeps (int): Sweeps of descent once weights are chosen; a row rests once a sweep gains less than 0.5 % (0 to 64;
            default: 4 with a pattern, fp8: 0, else 2)
        shrink (float): Share taken off products of two inputs (default: 0.5, with a pattern 0.1; by guided statistics
            0.2, with a pattern 0.05)
        scale_search (int): Codes tried above the largest weight's scale (0 to 16; default: 7; powers of two: 1)
        mask (path): prune by the masks of this file, as MaskLLM makes them: safetensors with M.mask or M, U8 or BOOL [N,
            K], for each module M that is pruned; 1 stays (default: masks are chosen)
        budget (float): Prune this share of the bytes, 0 to 1, and only quantize the rest: with a pattern and stats, whose
            fisher_hessian says what each costs the model. The cheapest a byte come first; what is fused stays together.
            dry_run prints the curve (default: all is pruned)
        max_loss (float): Prune as much as stays below this expected loss, else as budget (default: any)
        html (path): With budget or max_loss: write a page about the choice, for a browser
        modules (str or a list of such): Modules or tensors that go: name, glob, re:regex or role (mtp, head, ...); of the
            layers the last alone
        experts (int or path): Experts that stay in each layer: a number, with by, or a JSON file {"BLOCK": [numbers]}
        by (path): Safetensors file with BLOCK.saliency F32 [E] for each block of experts; the largest stay, on a tie the
            lower number, and with groups of experts equally many of each
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Plan, the document `plan` of tools/JSON.md:
            plan (string): file that was written
            layout (string)
            files (integer)
            tensors (integer)
            bytes_read (integer)
            bytes_written (integer)
            peak_memory (integer)
            findings (list of finding)
            tasks (integer, optional): with `tasks`, as the next three
            balance (number, optional): the largest task over the mean
            overhead (number, optional): bytes of all tasks over those of one
            task_bytes (list of integer, optional)

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        to writes:
            v7: 2:4-pruned NVFP4, 3.5 bits a weight: codes, metadata and block scales as three tensors, N contiguous
            v7-packed: 2:4-pruned NVFP4, 4 bits a weight: v7 in one tensor, with each block scale twice
            g8: dense NVFP4, 4.5 bits a weight: gate and up rows interleaved by 8, block scales in 128x4 tiles
            nvfp4: NVFP4 in a dialect that engines load, without loss
            fp8: E4M3 weights with a scale for each tensor, row or block
            mxfp8: E4M3 weights with a power of two for each 32
            mxfp6: E2M3 weights with a power of two for each 32
            mxfp4: E2M1 weights with a power of two for each 32
            bf16: dequantized weights
            prune: what twofour.prune() writes
            quantize: what twofour.quantize() writes

        With donor and take the tasks write what twofour.graft() writes, with modules or experts what twofour.drop() writes.
        Then run twofour.convert(plan=PLAN, task=I/N) for each I from 0 to N - 1, on any machine, in any order, with the same
        N, and twofour.merge(destination) when all are done. The unit of work is an output file: if the work divides unevenly,
        a smaller max_shard_size makes more files.
    """
    return cast("documents.Plan", call(
        "plan", source, destination, progress=progress, to=to, dialect=dialect, pattern=pattern,
        block_scale=block_scale, zero_block=zero_block, donor=donor, take=take, output=output, tasks=tasks,
        include=include, exclude=exclude, also=also, max_shard_size=max_shard_size, follow_links=follow_links,
        no_readme=no_readme, without_config=without_config, zero_points=zero_points, fold=fold,
        granularity=granularity, block=block, scale_dtype=scale_dtype, odd_blocks=odd_blocks, arithmetic=arithmetic,
        exact=exact, input_scale=input_scale, one_input_scale_a_layer=one_input_scale_a_layer,
        draft_experts=draft_experts, keep_global_scale=keep_global_scale, recipe=recipe, stats=stats,
        strict_stats=strict_stats, method=method, sweeps=sweeps, shrink=shrink, scale_search=scale_search, mask=mask,
        budget=budget, max_loss=max_loss, html=html, modules=modules, experts=experts, by=by, jobs=jobs,
        device=device,
    ))  # fmt: skip


@explained
def merge(
    artifact: Path,
    *,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Convert:
    """Complete the artifact that the tasks of a plan wrote.

    Example: twofour.merge("artifact")

    Args:
        artifact (path): Directory that the tasks of a plan wrote
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Convert, the document `convert` of tools/JSON.md:
            layout (string): layout or format that was written; `graft`, `drop`
            device (string): `cpu` or `cuda`
            was_complete (boolean): `resume=True` found it complete
            files_kept (integer): weight files of an earlier run
            bytes_kept (integer)
            bytes_read (integer)
            bytes_written (integer)
            bytes_verified (integer): read back and compared
            seconds (number)
            files (integer): weight files
            tensors (integer)
            modules (list of module)
            findings (list of finding)
            recovery (recovery, optional): `compress(recover=...)`
        A documents.MergeOfACompleteDirectory for merge of a complete directory.

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        Checks the tasks' records against the plan, then writes everything but the weights, at the end the index and
        twofour.json. Weights are not read again: twofour.validate(artifact) compares their hashes.
    """
    return cast("documents.Convert", call(
        "merge", artifact, progress=progress, jobs=jobs, device=device,
    ))  # fmt: skip


@explained
def synth(
    destination: Path,
    shape: Literal["tiny", "qwen3-next", "qwen3-moe", "deepseek-v4", "mixtral", "llama", "qwen3.8-flash-next", "qwen3.6-35b-a3b", "qwen3.8-2.4t-a95b", "qwen3.8-27b", "deepseek-v3", "kimi-k2-thinking", "glm-5.2", "glm-5.3", "nemotron-3-super", "nemotron-3-ultra", "nemotron-3.5-lightning", "minimax-m3", "kimi-k3", "ling-3.0-flash", "gpt-oss"],
    *,
    layers: Optional[int] = None,
    experts: Optional[int] = None,
    dialect: Optional[Literal["modelopt", "compressed-tensors", "awq", "gptq", "nvidia", "llm-compressor", "unsloth", "released", "base", "nvidia-mixed", "quark", "w4a8", "redhat"]] = None,
    small: bool = False,
    vocab: Optional[int] = None,
    seed: Optional[int] = None,
    headers_only: bool = False,
    dry_run: bool = False,
    max_shard_size: Optional[Union[int, str]] = None,
    jobs: Optional[int] = None,
    device: Optional[str] = None,
    progress: Optional[ProgressCallback] = None,
) -> documents.Synth:
    """Make a checkpoint with the shapes of a known model.

    Example: twofour.synth("checkpoint", shape="qwen3-next", layers=1, experts=16)

    Args:
        destination (path): Directory to write; absent or empty
        shape ("tiny", "qwen3-next", "qwen3-moe", "deepseek-v4", "mixtral", "llama", "qwen3.8-flash-next",
            "qwen3.6-35b-a3b", "qwen3.8-2.4t-a95b", "qwen3.8-27b", "deepseek-v3", "kimi-k2-thinking", "glm-5.2",
            "glm-5.3", "nemotron-3-super", "nemotron-3-ultra", "nemotron-3.5-lightning", "minimax-m3", "kimi-k3",
            "ling-3.0-flash", "gpt-oss"): Model whose names and shapes to take
        layers (int): Layers (1 to 1000; default: the model's)
        experts (int): Experts of a layer, at least as many as the router picks for a token: tiny 2, qwen3-next 10,
            qwen3-moe 8, deepseek-v4 6, mixtral 2, qwen3.8-flash-next 10, qwen3.6-35b-a3b 8, qwen3.8-2.4t-a95b 10,
            deepseek-v3 8, kimi-k2-thinking 8, glm-5.2 8, glm-5.3 8, nemotron-3-super 22, nemotron-3-ultra 22,
            nemotron-3.5-lightning 6, minimax-m3 4, kimi-k3 16, ling-3.0-flash 8, gpt-oss 4 (1 to 10000; default: the
            model's)
        dialect ("modelopt", "compressed-tensors", "awq", "gptq", "nvidia", "llm-compressor", "unsloth", "released",
            "base", "nvidia-mixed", "quark", "w4a8", "redhat"): How NVFP4 is stored, or whose publication of a model it
            is; released: its maker's (default: the shape's first of these)
        small (True or False): Divide every size, so that a checkpoint takes megabytes; config.json has the same numbers
            (default: False)
        vocab (int): Rows of the embedding (1 to 10000000; default: 1024)
        seed (int): Seed of the weights (default: 0)
        headers_only (True or False): Write files of full size with holes instead of weights, to try commands that read
            only headers (default: False)
        dry_run (True or False): Show what would be written, write nothing (default: False)
        max_shard_size (int or str): Largest weight file to write, in bytes of data, decimal: 5GB, 500MB (default: 5GB)
        jobs (int): Number of threads (1 to 4096; default: one per processor)
        device ("cpu", "auto"): Where to compute. This command runs only on the CPU (default: auto)
        progress (function): called with phase, bytes done and bytes in all, on the calling thread: before the command,
            about 20 times a second, and after it. The first phase is "starting", of 0 bytes in all; each later one has
            its own. True stops the command. An exception of it comes out after the command has tidied up.
            tools/python/README.md shows it with tqdm.

    Returns:
        A documents.Synth, the document `synth` of tools/JSON.md:
            dry_run (boolean)
            shape (string)
            dialect (string)
            seed (integer)
            tensors (integer)
            files (list of file)
            bytes (integer)
            seconds (number)

    Raises:
        NotFoundError: a file or directory is missing (also a FileNotFoundError).
        ExistsError: a file or directory is there and may not be replaced (also a FileExistsError).
        ArgumentError: an argument has an invalid value, or does not fit the others (also a ValueError).
        Error: all else that the program reports with exit code 2, and the base of these.
        Interrupted: `progress` returned True.
        KeyboardInterrupt: Ctrl-C, once the command has tidied up.

    Notes:
        Dialects of shapes, the default first:
        `tiny`: modelopt, compressed-tensors; `qwen3-next`: modelopt, compressed-tensors; `qwen3-moe`: modelopt,
        compressed-tensors; `deepseek-v4`: modelopt, compressed-tensors, released, base; `mixtral`: modelopt,
        compressed-tensors; `llama`: modelopt, compressed-tensors, awq, gptq; `qwen3.8-flash-next`: nvidia; `qwen3.6-35b-a3b`:
        nvidia; `qwen3.8-2.4t-a95b`: llm-compressor; `qwen3.8-27b`: unsloth; `deepseek-v3`: released; `kimi-k2-thinking`:
        released; `glm-5.2`: nvidia, nvidia-mixed, quark; `glm-5.3`: w4a8; `nemotron-3-super`: nvidia; `nemotron-3-ultra`:
        nvidia; `nemotron-3.5-lightning`: nvidia; `minimax-m3`: nvidia, released; `kimi-k3`: released, redhat;
        `ling-3.0-flash`: released; `gpt-oss`: released

        lib/synth/README.md says what each of them is.
    """
    return cast("documents.Synth", call(
        "synth", destination, progress=progress, shape=shape, layers=layers, experts=experts, dialect=dialect,
        small=small, vocab=vocab, seed=seed, headers_only=headers_only, dry_run=dry_run,
        max_shard_size=max_shard_size, jobs=jobs, device=device,
    ))  # fmt: skip


__all__ = [
    "inspect",
    "lint",
    "diff",
    "convert",
    "quantize",
    "prune",
    "compress",
    "graft",
    "drop",
    "repair",
    "validate",
    "eval",
    "generate",
    "card",
    "stats",
    "recipes",
    "plan",
    "merge",
    "synth",
]
