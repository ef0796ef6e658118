"""What commands return. Made by make_types.py from tools/JSON.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class Inspect(TypedDict):
    """inspect"""

    schema_version: int
    what: str  #: what the path holds
    files: int  #: weight files
    tensor_count: int
    data_bytes: int  #: bytes of tensors
    header_bytes: int  #: bytes of headers
    other_files: dict[str, int]  #: bytes of every other file
    total_bytes: int  #: all files
    default_set_bytes: int  #: what `convert` takes by default
    layout_bytes: dict[str, int]  #: the same in each layout
    formats: dict[str, int]  #: quantized modules of each format: `INT4`
    findings: list[Finding]
    tensors: list[Tensors]
    nvfp4_modules: list[Modules]
    other_modules: list[Modules]  #: in FP8, MXFP4 and INT4; `dialect` says what shares a scale


class Lint(TypedDict):
    """lint"""

    schema_version: int
    path: str
    sound: bool  #: whether there is no error and no warning
    errors: int  #: findings of that severity, without consequences
    warnings: int
    notes: int
    consequences: int  #: what is listed below findings
    files: int
    tensors: int
    bytes: int  #: bytes read
    seconds: float
    rules: list[Rule]  #: those that found something
    findings: list[Finding]
    known: list[Finding]  #: those of `--baseline`; they count for nothing


class Diff(TypedDict):
    """diff"""

    schema_version: int
    a: Side
    b: Side
    tolerance: float
    headers_only: bool  #: no weights were read
    failed: int  #: entries and keys that `--fail-on` counts
    counts: dict[str, int]  #: entries of each class
    renamed: int  #: entries under other names
    same_bytes: int  #: entries equal byte for byte
    rows: list[Row]  #: by layer and projection
    files: list[ComparedFile]  #: files that are no weights
    #: keys of config.json and generation_config.json that differ, and the quantization of modules that the configs
    #: state differently
    config: list[ConfigKey]
    moved: list[MovedWeights]  #: what of that which differs is elsewhere, or in another order, in B
    findings: list[Finding]
    entries: list[Entry]


class Validate(TypedDict):
    """validate"""

    schema_version: int
    valid: bool  #: whether there are no differences
    device: str
    tensors: int
    bytes: int
    seconds: float
    solved_rows: NotRequired[SolvedRows]  #: of what quantize `--stats` wrote
    without_statistics: NotRequired[bool]  #: true: with `--source` and without `--stats`, of such an artifact
    source_tensors: NotRequired[int]  #: with `--source`, as the next five; of a donor, too
    source_bytes: NotRequired[int]
    weights: NotRequired[list[PrunedMatrix]]
    values: NotRequired[list[ConvertedMatrix]]
    layers: NotRequired[list[Layer]]  #: layers run on the CPU
    layer_coverage: NotRequired[Coverage]
    device_layers: NotRequired[list[DeviceLayer]]  #: layers run on a CUDA device, as the next
    device_layer_coverage: NotRequired[Coverage]
    sample: NotRequired[Sample]  #: where layers are run
    differences: list[Finding]
    notes: list[Finding]


class Repair(TypedDict):
    """repair"""

    schema_version: int
    mends: list[Mend]  #: in the order in which they were applied
    unmended: list[Finding]  #: what is beyond repair, and why
    left: list[Finding]  #: what lint finds in the result
    mended: bool  #: whether no warning and no error is left
    written: NotRequired[Written]  #: the run


class Convert(TypedDict):
    """convert"""

    schema_version: int
    layout: str  #: layout or format that was written; `graft`, `drop`
    device: str  #: `cpu` or `cuda`
    was_complete: bool  #: `--resume` found it complete
    files_kept: int  #: weight files of an earlier run
    bytes_kept: int
    bytes_read: int
    bytes_written: int
    bytes_verified: int  #: read back and compared
    seconds: float
    files: int  #: weight files
    tensors: int
    modules: list[Module]
    findings: list[Finding]


class Finding(TypedDict):
    """finding"""

    severity: str  #: `note`, `warning` or `error`
    rule: str  #: stable name: `unequal-global-scales`; those of lint are listed by `lint --rules`
    where: str  #: file, tensor or module; empty for the whole checkpoint
    message: str  #: what was found, and what was done about it
    consequences: NotRequired[list[Finding]]  #: of lint: what follows from it, and counts for nothing


class Tensors(TypedDict):
    """tensors"""

    name: str
    dtype: str
    shape: list[int]
    count: int  #: tensors
    bytes: int  #: of all


class Modules(TypedDict):
    """modules"""

    name: str
    dialect: str
    shape: list[int]  #: E, N, K
    count: int  #: modules
    bytes: int  #: of all
    stats: NotRequired[WeightStatistics]  #: with `--stats`, of all
    members: NotRequired[list[WeightStatistics]]  #: with `--stats`, of each


class Rule(TypedDict):
    """rule"""

    id: str  #: what findings have as `rule`
    severity: str  #: `off` where it is looked for only on request
    what: str  #: what is wrong
    why: str  #: what follows from it
    todo: str  #: what to do
    story: str  #: where it happened; may be empty
    count: NotRequired[int]  #: findings
    summary: NotRequired[str]  #: of all findings together


class Side(TypedDict):
    """side"""

    path: str
    what: str
    tensors: int


class Row(TypedDict):
    """row"""

    layer: str
    projection: str
    counts: dict[str, int]
    figures: NotRequired[Figures]  #: of what differs
    worst: NotRequired[str]  #: name of the entry that differs most


class ComparedFile(TypedDict):
    """compared file"""

    name: str
    state: str  #: `same`, `different`, `only in A`, `only in B`


class ConfigKey(TypedDict):
    """config key"""

    file: str
    key: str  #: its path, as in `text_config.rope_parameters.rope_theta`
    a: Optional[str]  #: the value as JSON, cut if it is long; null: A has no such key
    b: Optional[str]
    counts: bool  #: whether it may change what a model computes, which `--fail-on config` asks for


class MovedWeights(TypedDict):
    """moved weights"""

    #: `experts`, `renumbered-experts` (the router's rows with them), `layers`, `gate-up`, `other`, `rows`,
    #: `columns`, `nibbles`, `signs`, `scales`, `factor`, `transposed`
    how: str
    name: str  #: in A: a matrix, a block of experts, a layer
    message: str
    pairs: list[MovedPair]  #: whole matrices that B has under another name


#: entry
Entry = TypedDict("Entry", {"name": "str", "kind": "str", "class": "str", "layer": "str", "projection": "str", "expert": "Optional[int]", "renamed": "bool", "same_bytes": "bool", "a": "Optional[Stored]", "b": "Optional[Stored]", "figures": "NotRequired[Figures]", "message": "NotRequired[str]"})


class SolvedRows(TypedDict):
    """solved rows"""

    all: int  #: rows of matrices that were solved
    not_drawn: int  #: of these, those of which only pattern and loss were derived again


class PrunedMatrix(TypedDict):
    """pruned matrix"""

    name: str
    shape: list[int]  #: E, N, K
    zero_share: float  #: share of zero codes
    quality: Quality


class ConvertedMatrix(TypedDict):
    """converted matrix"""

    name: str
    shape: list[int]
    error: WeightError


class Layer(TypedDict):
    """layer"""

    name: str
    tokens: int
    experts_used: int
    exact: NotRequired[bool]  #: whether the output is the reference's
    cosine: float  #: to the source's layer
    relative_error: float


class Coverage(TypedDict):
    """coverage"""

    found: int  #: layers of the artifact
    not_sampled: int
    not_run: list[LayerThatWasNotRun]


class DeviceLayer(TypedDict):
    """device layer"""

    name: str
    layout: str
    tokens: int
    experts_used: int
    cosine: float  #: to the reference
    relative_error: float
    beyond_tolerance: int
    worst: WorstNumber


class Sample(TypedDict):
    """sample"""

    seed: int
    tokens: int  #: a layer
    experts: Optional[int]  #: at most; null: all that the router picks
    layers: Optional[int]  #: at most; null: all


class Mend(TypedDict):
    """mend"""

    mend: str  #: its name
    rules: list[str]  #: lint rules that led to it
    bytes: int  #: of tensors and files that are written otherwise
    tensors: list[str]  #: made, changed or taken
    dropped: list[str]  #: tensors of the source that go, as `FILE: NAME`
    files: list[str]  #: that go, are taken in or are written otherwise
    settings: list[Setting]  #: keys of config files
    prefix: str  #: what goes from all names; may be empty
    loss: dict[str, float]  #: of a fold, by module: relative error of its weights


class Written(TypedDict):
    """written"""

    files: int  #: weight files
    files_kept: int  #: weight files of an earlier run
    tensors: int
    bytes_read: int
    bytes_written: int
    bytes_verified: int  #: read back and compared
    seconds: float
    findings: list[Finding]


class Module(TypedDict):
    """module"""

    name: str
    shape: list[int]  #: E, N, K
    quality: NotRequired[Quality]  #: what pruning or quantizing cost
    cast: NotRequired[str]  #: `exact`: MXFP4 cast without loss
    solver: NotRequired[Solver]  #: with `--stats`: how it was solved
    kept: NotRequired[Kept]  #: with `--keep-global-scale`: codes and scales against that checkpoint


class WeightStatistics(TypedDict):
    """weight statistics"""

    name: NotRequired[str]  #: of one of several modules
    codes: NotRequired[list[int]]  #: how often each of the 16 codes is stored
    zero_share: float  #: share of zero codes
    share_2_4: float  #: share of quads that are 2:4 already
    share_4_8_paired: float  #: share of octets that are 4:8-paired already
    block_scale_min: float
    block_scale_max: float
    block_scales_nan: int
    global_scale_min: float
    global_scale_max: float


class Figures(TypedDict):
    """figures"""

    values: int  #: values compared
    different: int  #: beyond the tolerance
    cosine: Optional[float]
    snr_db: Optional[float]
    relative_error: Optional[float]
    max_abs: Optional[float]  #: largest difference
    first: NotRequired[FirstDifference]


class MovedPair(TypedDict):
    """moved pair"""

    a: str
    b: str


class Stored(TypedDict):
    """stored"""

    tensor: str
    format: str
    shape: list[int]


class Quality(TypedDict):
    """quality"""

    relative_error: float  #: norm of the difference over the norm of the source
    snr_db: Optional[float]  #: signal to noise, in dB
    retained_energy: NotRequired[float]  #: share of the squared weights that pruning keeps
    cosine: NotRequired[float]  #: between pruned and source weights
    tied_share: NotRequired[float]  #: share of quads that a tie decided
    pruned_after: NotRequired[Quality]  #: quantize with `--pattern`: the same had pruning come second
    #: with `--stats`: squared change of the outputs over their squares, by the statistics
    relative_output_loss: NotRequired[float]
    heldout_output_loss: NotRequired[float]  #: the same by the sums that the file has under `heldout.`
    #: what the change costs the model's loss, by `fisher_hessian`, up to a factor that all matrices share
    expected_loss: NotRequired[float]
    lost_weights: NotRequired[float]  #: MX formats of F16 weights: those that become 0 for want of a scale


class WeightError(TypedDict):
    """weight error"""

    relative_error: float
    snr_db: Optional[float]
    cosine: float
    max_abs: float  #: largest difference
    weights: int  #: weights compared
    different: int  #: weights that differ


class LayerThatWasNotRun(TypedDict):
    """layer that was not run"""

    name: str
    why: str


class WorstNumber(TypedDict):
    """worst number"""

    share_of_tolerance: float
    token: int
    column: int
    expected: float
    found: float


class Setting(TypedDict):
    """setting"""

    file: str
    key: str


class Solver(TypedDict):
    """solver"""

    method: str  #: `joint`, `gptq`, `wanda` or `rtn`; of artifacts of 0.2.0 `sparsegpt`, too


class Kept(TypedDict):
    """kept"""

    bytes: int  #: bytes compared
    codes_that_differ: int
    block_scales_that_differ: int
    first: NotRequired[str]  #: the first difference


class FirstDifference(TypedDict):
    """first difference"""

    expert: int
    n: int
    k: int
    a: Any  #: A's value
    b: Any  #: B's value
