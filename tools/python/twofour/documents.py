"""What commands return. Made by make_types.py from tools/JSON.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired



class Inspect(TypedDict):
    """The document `inspect`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        what: what the path holds
        files: weight files
        tensor_count
        data_bytes: bytes of tensors
        header_bytes: bytes of headers
        other_files: bytes of every other file
        total_bytes: all files
        default_set_bytes: what `convert` takes by default
        layout_bytes: the same in each layout
        formats: quantized modules of each format: `INT4`
        findings
        tensors
        nvfp4_modules
        other_modules: in FP8, MXFP4 and INT4; `dialect` says what shares a scale
    """

    schema_version: int
    what: str
    files: int
    tensor_count: int
    data_bytes: int
    header_bytes: int
    other_files: dict[str, int]
    total_bytes: int
    default_set_bytes: int
    layout_bytes: dict[str, int]
    formats: dict[str, int]
    findings: list[Finding]
    tensors: list[Tensors]
    nvfp4_modules: list[Modules]
    other_modules: list[Modules]


class InspectAt(TypedDict):
    """The document `inspect --at`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        at: TENSOR:OFFSET
        text: what the byte is
    """

    schema_version: int
    at: str
    text: str


class InspectValues(TypedDict):
    """The document `inspect --values`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        name
        format
        whole: shape of the tensor or module
        shape: shape of what is printed
        values: in row order; what is not finite is a string
    """

    schema_version: int
    name: str
    format: str
    whole: list[int]
    shape: list[int]
    values: list[Any]


class Lint(TypedDict):
    """The document `lint`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        path
        sound: whether there is no error and no warning
        errors: findings of that severity, without consequences
        warnings
        notes
        consequences: what is listed below findings
        files
        tensors
        bytes: bytes read
        seconds
        rules: those that found something
        findings
        known: those of `baseline`; they count for nothing
    """

    schema_version: int
    path: str
    sound: bool
    errors: int
    warnings: int
    notes: int
    consequences: int
    files: int
    tensors: int
    bytes: int
    seconds: float
    rules: list[Rule]
    findings: list[Finding]
    known: list[Finding]


class LintRules(TypedDict):
    """The document `lint --rules`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        rules
    """

    schema_version: int
    rules: list[Rule]


class Diff(TypedDict):
    """The document `diff`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        a
        b
        tolerance
        headers_only: no weights were read
        failed: entries and keys that `fail_on` counts
        counts: entries of each class
        renamed: entries under other names
        same_bytes: entries equal byte for byte
        rows: by layer and projection
        files: files that are no weights
        config: keys of config.json and generation_config.json that differ, and the quantization of modules that the
            configs state differently
        moved: what of that which differs is elsewhere, or in another order, in B
        findings
        entries
    """

    schema_version: int
    a: Side
    b: Side
    tolerance: float
    headers_only: bool
    failed: int
    counts: dict[str, int]
    renamed: int
    same_bytes: int
    rows: list[Row]
    files: list[ComparedFile]
    config: list[ConfigKey]
    moved: list[MovedWeights]
    findings: list[Finding]
    entries: list[Entry]


class Convert(TypedDict):
    """The document `convert`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        layout: layout or format that was written; `graft`, `drop`
        device: `cpu` or `cuda`
        was_complete: `resume=True` found it complete
        files_kept: weight files of an earlier run
        bytes_kept
        bytes_read
        bytes_written
        bytes_verified: read back and compared
        seconds
        files: weight files
        tensors
        modules
        findings
        recovery: `compress(recover=...)`
    """

    schema_version: int
    layout: str
    device: str
    was_complete: bool
    files_kept: int
    bytes_kept: int
    bytes_read: int
    bytes_written: int
    bytes_verified: int
    seconds: float
    files: int
    tensors: int
    modules: list[Module]
    findings: list[Finding]
    recovery: NotRequired[Recovery]


class ConvertDryRun(TypedDict):
    """The document `convert --dry-run`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        dry_run: true
        layout
        device
        bytes_read
        bytes_written
        workers: threads that would work
        peak_memory: bytes, at most
        files: weight files
        other_files
        tensors
        findings
        budget: `quantize(budget=...)`, `max_loss`
        compress: of `compress`, before it converts
        choice: `compress(bits=...)`, `size`
    """

    schema_version: int
    dry_run: bool
    layout: str
    device: str
    bytes_read: int
    bytes_written: int
    workers: int
    peak_memory: int
    files: list[File]
    other_files: list[File]
    tensors: list[PlannedTensor]
    findings: list[Finding]
    budget: NotRequired[Budget]
    compress: NotRequired[Collecting]
    choice: NotRequired[SizeChoice]


ConvertPlan = TypedDict("ConvertPlan", {
    "schema_version": "int", "task": "int", "tasks": "int", "from": "str", "device": "str", "destination": "str",
        "files": "int", "files_kept": "int", "bytes_read": "int", "bytes_written": "int", "bytes_verified": "int",
        "seconds": "float", "findings": "list[Finding]",
})  # fmt: skip
ConvertPlan.__doc__ = """The document `convert --plan`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        task: from 0
        tasks
        from: what said which task: `task` or a variable
        device
        destination
        files: weight files of the task
        files_kept
        bytes_read
        bytes_written
        bytes_verified
        seconds
        findings
    """


class Repair(TypedDict):
    """The document `repair`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        mends: in the order in which they were applied
        unmended: what is beyond repair, and why
        left: what lint finds in the result
        mended: whether no warning and no error is left: exit code 0
        outcome: `mended`, `mended in part` (something is in `left` or `unmended`), `nothing to mend`, `nothing that
            can be mended`
        written: the run
    """

    schema_version: int
    mends: list[Mend]
    unmended: list[Finding]
    left: list[Finding]
    mended: bool
    outcome: str
    written: NotRequired[Written]


class Validate(TypedDict):
    """The document `validate`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        valid: whether there are no differences
        device
        tensors
        bytes
        seconds
        recovered_tensors: learned by `compress(recover=...)`: held by hash
        solved_rows: of what quantize `stats` wrote
        without_statistics: true: with `source` and without `stats`, of such an artifact
        source_tensors: with `source`, as the next five; of a donor, too
        source_bytes
        weights
        values
        layers: layers run on the CPU
        layer_coverage
        device_layers: layers run on a CUDA device, as the next
        device_layer_coverage
        sample: where layers are run
        mends: with `source`, of what repair wrote
        differences
        notes
    """

    schema_version: int
    valid: bool
    device: str
    tensors: int
    bytes: int
    seconds: float
    recovered_tensors: NotRequired[int]
    solved_rows: NotRequired[SolvedRows]
    without_statistics: NotRequired[bool]
    source_tensors: NotRequired[int]
    source_bytes: NotRequired[int]
    weights: NotRequired[list[PrunedMatrix]]
    values: NotRequired[list[ConvertedMatrix]]
    layers: NotRequired[list[Layer]]
    layer_coverage: NotRequired[Coverage]
    device_layers: NotRequired[list[DeviceLayer]]
    device_layer_coverage: NotRequired[Coverage]
    sample: NotRequired[Sample]
    mends: NotRequired[list[ProvenMend]]
    differences: list[Finding]
    notes: list[Finding]


class Eval(TypedDict):
    """The document `eval`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        path
        family: `model_type` of its config.json
        device
        windows
        predictions: tokens that were predicted
        loss: mean negative log-likelihood, nats
        loss_error: its standard error, predictions taken as independent
        perplexity: exp of `loss`; null beyond 1.8e308, as the next
        perplexity_error
        seconds
        against: with `against`
        positions
        worst: by divergence; without `against` by loss
    """

    schema_version: int
    path: str
    family: str
    device: str
    windows: int
    predictions: int
    loss: float
    loss_error: float
    perplexity: Optional[float]
    perplexity_error: Optional[float]
    seconds: float
    against: NotRequired[OtherModel]
    positions: list[Positions]
    worst: list[Prediction]


class EvalDryRun(TypedDict):
    """The document `eval --dry-run`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        dry_run: true
        path
        family
        device
        windows
        predictions
        windows_at_once: that go through a layer together
        bytes_read: of weights
        peak_memory: bytes, at most, beside mapped weights
    """

    schema_version: int
    dry_run: bool
    path: str
    family: str
    device: str
    windows: int
    predictions: int
    windows_at_once: int
    bytes_read: int
    peak_memory: int


class Generate(TypedDict):
    """The document `generate`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        path
        text: what was generated
        ended: by a token that ends a text
        seconds
        tokens
        prompt_tokens
        device
        against: with `against`, as the next
        parts_at: the first token that differs; null: none
    """

    schema_version: int
    path: str
    text: str
    ended: bool
    seconds: float
    tokens: list[GeneratedToken]
    prompt_tokens: int
    device: str
    against: NotRequired[Continuation]
    parts_at: NotRequired[Optional[int]]


class Card(TypedDict):
    """The document `card`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        text: the card, Markdown
    """

    schema_version: int
    text: str


class StatsInspect(TypedDict):
    """The document `stats inspect`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        path
        hash_xxh3_128: of the file
        structure: hash of linears and K
        weights: hash of the final norm
        tokens
        text
        weighting
        input: hash of model, tokens, their weights and the order of collecting, of `compress`
        predecessor: of sequential runs
        entries
        heldout_entries
    """

    schema_version: int
    path: str
    hash_xxh3_128: str
    structure: str
    weights: str
    tokens: str
    text: str
    weighting: str
    input: str
    predecessor: str
    entries: list[StatisticsEntry]
    heldout_entries: list[StatisticsEntry]


class StatsCollectDryRun(TypedDict):
    """The document `stats collect --dry-run`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        dry_run: true
        path: file that would be written
        device
        windows
        tokens: that sums are over
        held_out_tokens
        entries
        bytes_read: of weights
        bytes_written: of sums
        peak_memory: bytes, at most, beside mapped weights
        work_bytes: of residual streams in a file while a backward pass runs
    """

    schema_version: int
    dry_run: bool
    path: str
    device: str
    windows: int
    tokens: int
    held_out_tokens: int
    entries: int
    bytes_read: int
    bytes_written: int
    peak_memory: int
    work_bytes: NotRequired[int]


class StatsCheck(TypedDict):
    """The document `stats check`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        linears: of the checkpoint
        served: with tokens
        full: full Hessians of at least 4 tokens an input
        few_tokens: of 1 to 4 tokens an input
        fewer_tokens_than_inputs
        diagonal: a diagonal alone
        without_tokens
        without_inputs: with tokens whose inputs are all 0
        first_missing: the first linears without an entry
        weights: `same`, `others` or `unknown`
    """

    schema_version: int
    linears: int
    served: int
    full: int
    few_tokens: int
    fewer_tokens_than_inputs: int
    diagonal: int
    without_tokens: int
    without_inputs: int
    first_missing: list[str]
    weights: str


class Recipes(TypedDict):
    """The document `recipes`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        recipes
    """

    schema_version: int
    recipes: list[Recipe]


class RecipesName(TypedDict):
    """The document `recipes NAME`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        name
        summary: what it is for
        text: the recipe, YAML
    """

    schema_version: int
    name: str
    summary: str
    text: str


class Plan(TypedDict):
    """The document `plan`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        plan: file that was written
        layout
        files
        tensors
        bytes_read
        bytes_written
        peak_memory
        findings
        tasks: with `tasks`, as the next three
        balance: the largest task over the mean
        overhead: bytes of all tasks over those of one
        task_bytes
    """

    schema_version: int
    plan: str
    layout: str
    files: int
    tensors: int
    bytes_read: int
    bytes_written: int
    peak_memory: int
    findings: list[Finding]
    tasks: NotRequired[int]
    balance: NotRequired[float]
    overhead: NotRequired[float]
    task_bytes: NotRequired[list[int]]


class MergeOfACompleteDirectory(TypedDict):
    """The document `merge of a complete directory`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        destination
        was_complete: true
    """

    schema_version: int
    destination: str
    was_complete: bool


class Synth(TypedDict):
    """The document `synth`.

    Keys:
        schema_version: 1; counts up when a field changes or goes
        dry_run
        shape
        dialect
        seed
        tensors
        files
        bytes
        seconds
    """

    schema_version: int
    dry_run: bool
    shape: str
    dialect: str
    seed: int
    tensors: int
    files: list[File]
    bytes: int
    seconds: float


class Finding(TypedDict):
    """A part of documents: `finding`.

    Keys:
        severity: `note`, `warning` or `error`
        rule: stable name: `unequal-global-scales`; those of lint are listed by `lint(rules=True)`
        where: file, tensor or module; empty for the whole checkpoint
        message: what was found, and what was done about it
        consequences: of lint: what follows from it, and counts for nothing
    """

    severity: str
    rule: str
    where: str
    message: str
    consequences: NotRequired[list[Finding]]


class Tensors(TypedDict):
    """A part of documents: `tensors`.

    Keys:
        name
        dtype
        shape
        count: tensors
        bytes: of all
    """

    name: str
    dtype: str
    shape: list[int]
    count: int
    bytes: int


class Modules(TypedDict):
    """A part of documents: `modules`.

    Keys:
        name
        dialect
        shape: E, N, K
        count: modules
        bytes: of all
        stats: with `stats`, of all
        members: with `stats`, of each
    """

    name: str
    dialect: str
    shape: list[int]
    count: int
    bytes: int
    stats: NotRequired[WeightStatistics]
    members: NotRequired[list[WeightStatistics]]


class Rule(TypedDict):
    """A part of documents: `rule`.

    Keys:
        id: what findings have as `rule`
        severity: `off` where it is looked for only on request
        what: what is wrong
        why: what follows from it
        todo: what to do
        story: where it happened; may be empty
        count: findings
        summary: of all findings together
    """

    id: str
    severity: str
    what: str
    why: str
    todo: str
    story: str
    count: NotRequired[int]
    summary: NotRequired[str]


class Side(TypedDict):
    """A part of documents: `side`.

    Keys:
        path
        what
        tensors
    """

    path: str
    what: str
    tensors: int


class Row(TypedDict):
    """A part of documents: `row`.

    Keys:
        layer
        projection
        counts
        figures: of what differs
        worst: name of the entry that differs most
    """

    layer: str
    projection: str
    counts: dict[str, int]
    figures: NotRequired[Figures]
    worst: NotRequired[str]


class ComparedFile(TypedDict):
    """A part of documents: `compared file`.

    Keys:
        name
        state: `same`, `different`, `only in A`, `only in B`
    """

    name: str
    state: str


class ConfigKey(TypedDict):
    """A part of documents: `config key`.

    Keys:
        file
        key: its path, as in `text_config.rope_parameters.rope_theta`
        a: the value as JSON, cut if it is long; null: A has no such key
        b
        counts: whether it may change what a model computes, which `fail_on config` asks for
    """

    file: str
    key: str
    a: Optional[str]
    b: Optional[str]
    counts: bool


class MovedWeights(TypedDict):
    """A part of documents: `moved weights`.

    Keys:
        how: `experts`, `renumbered-experts` (the router's rows with them), `layers`, `gate-up`, `other`, `rows`,
            `columns`, `nibbles`, `signs`, `scales`, `factor`, `transposed`
        name: in A: a matrix, a block of experts, a layer
        message
        pairs: whole matrices that B has under another name
    """

    how: str
    name: str
    message: str
    pairs: list[MovedPair]


Entry = TypedDict("Entry", {
    "name": "str", "kind": "str", "class": "str", "layer": "str", "projection": "str", "expert": "Optional[int]",
        "renamed": "bool", "same_bytes": "bool", "a": "Optional[Stored]", "b": "Optional[Stored]", "figures":
        "NotRequired[Figures]", "message": "NotRequired[str]",
})  # fmt: skip
Entry.__doc__ = """A part of documents: `entry`.

    Keys:
        name
        kind
        class: `equal`, `reciprocal`, `within-tolerance`, `different`, `unlike-shape`, `unlike-type`, `unreadable`,
            `removed`, `added`, `not-read` (by `headers_only=True`)
        layer
        projection
        expert
        renamed
        same_bytes
        a
        b
        figures
        message
    """


class Module(TypedDict):
    """A part of documents: `module`.

    Keys:
        name
        shape: E, N, K
        quality: what pruning or quantizing cost
        cast: `exact`: MXFP4 cast without loss
        solver: with `stats`: how it was solved
        kept: with `keep_global_scale`: codes and scales against that checkpoint
    """

    name: str
    shape: list[int]
    quality: NotRequired[Quality]
    cast: NotRequired[str]
    solver: NotRequired[Solver]
    kept: NotRequired[Kept]


class Recovery(TypedDict):
    """A part of documents: `recovery`.

    Keys:
        passes: at most
        kept_pass: the pass with the least loss; 0: nothing changed
        tokens: learned from
        held_out_tokens
        loss_before: mean KL divergence of held-out tokens, in nats
        loss_after
        device: that learned
        tensors: norms and global scales that changed
    """

    passes: int
    kept_pass: int
    tokens: int
    held_out_tokens: int
    loss_before: float
    loss_after: float
    device: str
    tensors: int


class File(TypedDict):
    """A part of documents: `file`.

    Keys:
        name: name in the directory
        bytes: its size
        exact: whether the size is exact; of other files in a dry run
    """

    name: str
    bytes: int
    exact: NotRequired[bool]


PlannedTensor = TypedDict("PlannedTensor", {
    "name": "str", "dtype": "str", "shape": "list[int]", "bytes": "int", "file": "str", "decision": "str", "rule":
        "str", "from": "str",
})  # fmt: skip
PlannedTensor.__doc__ = """A part of documents: `planned tensor`.

    Keys:
        name
        dtype
        shape
        bytes
        file
        decision: `copy` or what it becomes
        rule: why: `rule 2 (experts)` of a recipe
        from: source tensor or module
    """


class Budget(TypedDict):
    """A part of documents: `budget`.

    Keys:
        share: of the bytes, that are pruned
        loss: expected loss of pruning them, beyond that of quantizing
        dense_loss: expected loss of quantizing all units
        units: cheapest a byte first
    """

    share: float
    loss: float
    dense_loss: float
    units: list[PruningUnit]


class Collecting(TypedDict):
    """A part of documents: `collecting`.

    Keys:
        tokens: that sums are over
        entries: of the statistics
        statistics_bytes
        work: folder that is there until the artifact is whole
        work_bytes: of it, the statistics among them
        peak_memory: bytes, at most, beside mapped weights
    """

    tokens: int
    entries: int
    statistics_bytes: int
    work: str
    work_bytes: int
    peak_memory: int


class SizeChoice(TypedDict):
    """A part of documents: `size choice`.

    Keys:
        bits: a weight in the mean, of codes and block scales
        bytes: of all tensors
        loss: predicted
        predictor: what predicted: `fisher_hessian of FILE`
        is_divergence: the loss is P, in nats a token, and a KL between P and 2 P is expected; otherwise it only ranks
        is_best: no choice of this size has a smaller predicted loss
        curve: from the least size on
        units
    """

    bits: float
    bytes: int
    loss: float
    predictor: str
    is_divergence: bool
    is_best: bool
    curve: list[SizePoint]
    units: list[SizedUnit]


class Mend(TypedDict):
    """A part of documents: `mend`.

    Keys:
        mend: its name
        rules: lint rules that led to it
        bytes: of tensors and files that are written otherwise
        tensors: made, changed or taken
        from_donor: number of these that are the donor's
        dropped: tensors of the source that go, as `FILE: NAME`
        files: that go, are taken in or are written otherwise
        settings: keys of config files
        prefix: what goes from all names; may be empty
        loss: of a fold, by module: relative error of its weights
    """

    mend: str
    rules: list[str]
    bytes: int
    tensors: list[str]
    from_donor: int
    dropped: list[str]
    files: list[str]
    settings: list[Setting]
    prefix: str
    loss: dict[str, float]


class Written(TypedDict):
    """A part of documents: `written`.

    Keys:
        files: weight files
        files_kept: weight files of an earlier run
        tensors
        bytes_read
        bytes_written
        bytes_verified: read back and compared
        seconds
        findings
    """

    files: int
    files_kept: int
    tensors: int
    bytes_read: int
    bytes_written: int
    bytes_verified: int
    seconds: float
    findings: list[Finding]


class SolvedRows(TypedDict):
    """A part of documents: `solved rows`.

    Keys:
        all: rows of matrices that were solved
        not_drawn: of these, those of which only pattern and loss were derived again
    """

    all: int
    not_drawn: int


class PrunedMatrix(TypedDict):
    """A part of documents: `pruned matrix`.

    Keys:
        name
        shape: E, N, K
        zero_share: share of zero codes
        quality
    """

    name: str
    shape: list[int]
    zero_share: float
    quality: Quality


class ConvertedMatrix(TypedDict):
    """A part of documents: `converted matrix`.

    Keys:
        name
        shape
        error
    """

    name: str
    shape: list[int]
    error: WeightError


class Layer(TypedDict):
    """A part of documents: `layer`.

    Keys:
        name
        tokens
        experts_used
        exact: whether the output is the reference's
        cosine: to the source's layer
        relative_error
    """

    name: str
    tokens: int
    experts_used: int
    exact: NotRequired[bool]
    cosine: float
    relative_error: float


class Coverage(TypedDict):
    """A part of documents: `coverage`.

    Keys:
        found: layers of the artifact
        not_sampled
        not_run
    """

    found: int
    not_sampled: int
    not_run: list[LayerThatWasNotRun]


class DeviceLayer(TypedDict):
    """A part of documents: `device layer`.

    Keys:
        name
        layout
        tokens
        experts_used
        cosine: to the reference
        relative_error
        beyond_tolerance
        worst
    """

    name: str
    layout: str
    tokens: int
    experts_used: int
    cosine: float
    relative_error: float
    beyond_tolerance: int
    worst: WorstNumber


class Sample(TypedDict):
    """A part of documents: `sample`.

    Keys:
        seed
        tokens: a layer
        experts: at most; null: all that the router picks
        layers: at most; null: all
    """

    seed: int
    tokens: int
    experts: Optional[int]
    layers: Optional[int]


class ProvenMend(TypedDict):
    """A part of documents: `proven mend`.

    Keys:
        mend
        tensors: tensors that it made, changed or took
        dropped: FILE: NAME in the source
        settings: FILE: KEY
        files: other files that it wrote or removed
    """

    mend: str
    tensors: list[str]
    dropped: list[str]
    settings: list[str]
    files: list[str]


class OtherModel(TypedDict):
    """A part of documents: `other model`.

    Keys:
        path
        perplexity: of the other model
        perplexity_error
        ratio: of the perplexities, this over the other's
        ratio_error: by the differences of paired predictions
        divergence: mean KL(other, this), nats
        divergence_error
        divergence_p99: 99th percentile
        agreement: share of predictions with the same most probable token
        layers: empty where the models have other layers
    """

    path: str
    perplexity: Optional[float]
    perplexity_error: Optional[float]
    ratio: Optional[float]
    ratio_error: Optional[float]
    divergence: float
    divergence_error: float
    divergence_p99: float
    agreement: float
    layers: list[LayerAgreement]


class Positions(TypedDict):
    """A part of documents: `positions`.

    Keys:
        begin: first position in a window
        end: behind the last
        predictions
        loss: mean
        divergence: with `against`, as the next
        agreement
    """

    begin: int
    end: int
    predictions: int
    loss: float
    divergence: NotRequired[float]
    agreement: NotRequired[float]


class Prediction(TypedDict):
    """A part of documents: `prediction`.

    Keys:
        window
        position: of the token in it
        token: that is there
        loss
        top: the most probable token
        other_loss: with `against`, as the next two
        other_top
        divergence
        before: the text before it; with the next two where the model has a tokenizer.json that is known
        text: of `token`
        top_text: of `top`
    """

    window: int
    position: int
    token: int
    loss: float
    top: int
    other_loss: NotRequired[float]
    other_top: NotRequired[int]
    divergence: NotRequired[float]
    before: NotRequired[str]
    text: NotRequired[str]
    top_text: NotRequired[str]


class GeneratedToken(TypedDict):
    """A part of documents: `generated token`.

    Keys:
        token
        text: as tokenizer.json has it; empty where it has no such token
        log_probability
    """

    token: int
    text: str
    log_probability: float


class Continuation(TypedDict):
    """A part of documents: `continuation`.

    Keys:
        path: of the other model
        text
        ended
        seconds
        tokens
    """

    path: str
    text: str
    ended: bool
    seconds: float
    tokens: list[GeneratedToken]


class StatisticsEntry(TypedDict):
    """A part of documents: `statistics entry`.

    Keys:
        name
        linears: that it serves
        kind: `hessian`, `hessian_blocks` or `sum_squares`
        k: inputs
        tokens
        target_offset: whether it has one
        fisher: whether it has a Fisher Hessian
    """

    name: str
    linears: list[str]
    kind: str
    k: int
    tokens: int
    target_offset: bool
    fisher: bool


class Recipe(TypedDict):
    """A part of documents: `recipe`.

    Keys:
        name
        summary: what it is for
    """

    name: str
    summary: str


class WeightStatistics(TypedDict):
    """A part of documents: `weight statistics`.

    Keys:
        name: of one of several modules
        codes: how often each of the 16 codes is stored
        zero_share: share of zero codes
        share_2_4: share of quads that are 2:4 already
        share_4_8_paired: share of octets that are 4:8-paired already
        block_scale_min
        block_scale_max
        block_scales_nan
        global_scale_min
        global_scale_max
    """

    name: NotRequired[str]
    codes: NotRequired[list[int]]
    zero_share: float
    share_2_4: float
    share_4_8_paired: float
    block_scale_min: float
    block_scale_max: float
    block_scales_nan: int
    global_scale_min: float
    global_scale_max: float


class Figures(TypedDict):
    """A part of documents: `figures`.

    Keys:
        values: values compared
        different: beyond the tolerance
        cosine
        snr_db
        relative_error
        max_abs: largest difference
        first
    """

    values: int
    different: int
    cosine: Optional[float]
    snr_db: Optional[float]
    relative_error: Optional[float]
    max_abs: Optional[float]
    first: NotRequired[FirstDifference]


class MovedPair(TypedDict):
    """A part of documents: `moved pair`.

    Keys:
        a
        b
    """

    a: str
    b: str


class Stored(TypedDict):
    """A part of documents: `stored`.

    Keys:
        tensor
        format
        shape
    """

    tensor: str
    format: str
    shape: list[int]


class Quality(TypedDict):
    """A part of documents: `quality`.

    Keys:
        relative_error: norm of the difference over the norm of the source
        snr_db: signal to noise, in dB
        retained_energy: share of the squared weights that pruning keeps
        cosine: between pruned and source weights
        tied_share: share of quads that a tie decided
        pruned_after: quantize with `pattern`: the same had pruning come second
        relative_output_loss: with `stats`: squared change of the outputs over their squares, by the statistics
        heldout_output_loss: the same by the sums that the file has under `heldout.`
        expected_loss: what the change costs the model's loss, by `fisher_hessian`, up to a factor that all matrices
            share
        lost_weights: MX formats of F16 weights: those that become 0 for want of a scale
    """

    relative_error: float
    snr_db: Optional[float]
    retained_energy: NotRequired[float]
    cosine: NotRequired[float]
    tied_share: NotRequired[float]
    pruned_after: NotRequired[Quality]
    relative_output_loss: NotRequired[float]
    heldout_output_loss: NotRequired[float]
    expected_loss: NotRequired[float]
    lost_weights: NotRequired[float]


class Solver(TypedDict):
    """A part of documents: `solver`.

    Keys:
        method: `joint`, `gptq`, `wanda` or `rtn`; of artifacts of 0.2.0 `sparsegpt`, too
    """

    method: str


class Kept(TypedDict):
    """A part of documents: `kept`.

    Keys:
        bytes: bytes compared
        codes_that_differ
        block_scales_that_differ
        first: the first difference
    """

    bytes: int
    codes_that_differ: int
    block_scales_that_differ: int
    first: NotRequired[str]


class PruningUnit(TypedDict):
    """A part of documents: `pruning unit`.

    Keys:
        name
        modules
        bytes: of codes and block scales, unpruned
        dense_loss: expected loss of quantizing it
        pruned_loss: of pruning and quantizing it
        share: of the bytes, of this unit and all before
        loss: expected loss of pruning these, beyond that of quantizing
        pruned
    """

    name: str
    modules: list[str]
    bytes: int
    dense_loss: float
    pruned_loss: float
    share: float
    loss: float
    pruned: bool


class SizePoint(TypedDict):
    """A part of documents: `size point`.

    Keys:
        bits: as of the choice
        bytes
        loss
    """

    bits: float
    bytes: int
    loss: float


class SizedUnit(TypedDict):
    """A part of documents: `sized unit`.

    Keys:
        name
        modules: linears that get one format
        weights
        format: chosen
        options: in the order of the menu
    """

    name: str
    modules: list[str]
    weights: int
    format: str
    options: list[FormatOption]


class Setting(TypedDict):
    """A part of documents: `setting`.

    Keys:
        file
        key
    """

    file: str
    key: str


class WeightError(TypedDict):
    """A part of documents: `weight error`.

    Keys:
        relative_error
        snr_db
        cosine
        max_abs: largest difference
        weights: weights compared
        different: weights that differ
    """

    relative_error: float
    snr_db: Optional[float]
    cosine: float
    max_abs: float
    weights: int
    different: int


class LayerThatWasNotRun(TypedDict):
    """A part of documents: `layer that was not run`.

    Keys:
        name
        why
    """

    name: str
    why: str


class WorstNumber(TypedDict):
    """A part of documents: `worst number`.

    Keys:
        share_of_tolerance
        token
        column
        expected
        found
    """

    share_of_tolerance: float
    token: int
    column: int
    expected: float
    found: float


class LayerAgreement(TypedDict):
    """A part of documents: `layer agreement`.

    Keys:
        cosine: mean over tokens
        relative_error
    """

    cosine: float
    relative_error: float


class FirstDifference(TypedDict):
    """A part of documents: `first difference`.

    Keys:
        expert
        n
        k
        a: A's value
        b: B's value
    """

    expert: int
    n: int
    k: int
    a: Any
    b: Any


class FormatOption(TypedDict):
    """A part of documents: `format option`.

    Keys:
        format
        bits: of codes and block scales of the unit
        bytes: of all its tensors
        loss: predicted
    """

    format: str
    bits: int
    bytes: int
    loss: float
