#!/usr/bin/env python3
"""Makes the sources and artifacts of this folder, and outcomes.json: what a program says of them.

    make.py artifacts TWOFOUR   # a binary of 568ef9b or e2686c9: the artifacts of its version, and their sources
    make.py outcomes TWOFOUR    # a binary of e2686c9: what every command made of them

Run it again only with those binaries: the artifacts are there because they are in the formats that these wrote. Nothing
but the standard library is needed.
"""
import functools
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent.parent / "compare"))
import checkpoints as c  # noqa: E402
import sources  # noqa: E402

# Artifact: the words before its path (a command and what it reads, in source/ but for other artifacts), those behind it.
V01 = {
    "v7": ("convert modelopt", "--to v7"), "v7-linear": ("convert modelopt", "--to v7 --also *o_proj"),
    "v7-packed": ("convert modelopt", "--to v7-packed"), "v7-compressed-tensors": ("convert compressed-tensors", "--to v7"),
    "g8": ("convert modelopt", "--to g8"),
    "nvfp4-compressed-tensors": ("convert modelopt", "--to nvfp4 --dialect compressed-tensors"),
    "nvfp4-modelopt": ("convert compressed-tensors", "--to nvfp4 --dialect modelopt"),
    "fp8-compressed-tensors-tensor": ("convert modelopt", "--to fp8 --dialect compressed-tensors --granularity tensor"),
    "fp8-compressed-tensors-row": ("convert modelopt", "--to fp8 --dialect compressed-tensors --granularity row"),
    "fp8-compressed-tensors-block": ("convert modelopt", "--to fp8 --dialect compressed-tensors --granularity block"),
    "fp8-modelopt-tensor": ("convert modelopt", "--to fp8 --dialect modelopt --granularity tensor"),
    "fp8-deepseek": ("convert modelopt", "--to fp8 --dialect deepseek"),
    "bf16": ("convert modelopt", "--to bf16"),
    "prune": ("prune modelopt", ""), "prune-paired": ("prune modelopt", "--pattern 4:8-paired"),
    "quantize-modelopt": ("quantize bf16", "--dialect modelopt --pattern 2:4"),
    "quantize-compressed-tensors": ("quantize bf16", "--dialect compressed-tensors --block-scale mse")}
FP8 = "--to fp8 --odd-blocks write --dialect "
STATS, TEXT = "--stats source/dense-stats.safetensors", "--tokens source/tokens.safetensors"
COSTS, MASK = "--stats source/moe-costs.safetensors", "--mask source/dense-mask.safetensors"
V02 = {
    # Layouts, from every format.
    "v7": ("convert modelopt", "--to v7"), "v7-packed": ("convert modelopt", "--to v7-packed"), "g8": ("convert modelopt", "--to g8"),
    "v7-linear": ("convert modelopt", "--to v7 --also *o_proj --fold any"),
    "v7-compressed-tensors": ("convert compressed-tensors", "--to v7"),
    "g8-compressed-tensors": ("convert compressed-tensors", "--to g8"), "v7-bf16": ("convert moe", "--to v7"),
    "v7-packed-bf16": ("convert bf16", "--to v7-packed --arithmetic compressed-tensors"),
    "g8-bf16": ("convert bf16", "--to g8 --block-scale mse --zero-block zero"),
    "v7-fp8": ("convert fp8", "--to v7"), "g8-mxfp4": ("convert gpt-oss", "--to g8"), "v7-awq": ("convert awq", "--to v7 --also *.self_attn.*"),
    "v7-deepseek-v4": ("convert deepseek-v4", "--to v7 --draft-experts keep"),
    "v7-stats": ("convert dense", f"--to v7 {STATS} --sweeps 1"), "g8-stats": ("convert dense", f"--to g8 {STATS}"),
    "v7-mask": ("convert dense", f"--to v7 {MASK}"), "v7-and-g8": ("convert moe", f"--to v7 {COSTS} --budget 0.5"),
    "v7-remote": ("convert http://127.0.0.1:8241/modelopt/", "--to v7"),
    # NVFP4 in another dialect.
    "nvfp4-compressed-tensors": ("convert modelopt", "--to nvfp4 --dialect compressed-tensors"),
    "nvfp4-modelopt": ("convert compressed-tensors", "--to nvfp4 --dialect modelopt"),
    "nvfp4-no-input-scales": ("convert modelopt", "--to nvfp4 --dialect compressed-tensors --input-scale none"),
    "nvfp4-of-g8": ("convert 0.2.0/g8", "--to nvfp4"), "nvfp4-of-v7": ("convert 0.2.0/v7", "--to nvfp4 --dialect compressed-tensors"),
    # Other number formats, in every dialect that has them.
    "fp8-compressed-tensors-tensor": ("convert dense", FP8 + "compressed-tensors --granularity tensor"),
    "fp8-compressed-tensors-row": ("convert dense", FP8 + "compressed-tensors --granularity row"),
    "fp8-compressed-tensors-block": ("convert dense", FP8 + "compressed-tensors --granularity block"),
    "fp8-compressed-tensors-bf16": ("convert dense", FP8 + "compressed-tensors --block 128x128 --scale-dtype bf16"),
    "fp8-compressed-tensors-rows": ("convert dense", FP8 + "compressed-tensors --block 1x128"),
    "fp8-modelopt-tensor": ("convert dense", FP8 + "modelopt --granularity tensor"),
    "fp8-modelopt-row": ("convert dense", FP8 + "modelopt --granularity row"),
    "fp8-modelopt-block": ("convert dense", FP8 + "modelopt --granularity block"),
    "fp8-deepseek": ("convert dense", FP8 + "deepseek"), "fp8-deepseek-32": ("convert dense", FP8 + "deepseek --block 32x32 --include *.mlp.*"),
    "fp8-of-nvfp4": ("convert modelopt", "--to fp8 --exact best"), "fp8-of-nvfp4-off": ("convert modelopt", "--to fp8 --exact off"),
    "fp8-kept": ("convert dense", "--to fp8 --dialect deepseek --block 32x32 --odd-blocks keep --include *.mlp.* --include *.k_proj"),
    "fp8-deepseek-v4": ("convert deepseek-v4", FP8 + "deepseek-v4 --draft-experts cast"),
    "fp8-deepseek-v4-e8m0": ("convert deepseek-v4", FP8 + "deepseek-v4 --draft-experts cast --scale-dtype e8m0"),
    "mxfp8-modelopt": ("convert dense", "--to mxfp8 --dialect modelopt --include *.down_proj"),
    "mxfp8-compressed-tensors": ("convert dense", "--to mxfp8 --dialect compressed-tensors --include *.down_proj"),
    "mxfp4-modelopt": ("convert dense", "--to mxfp4 --dialect modelopt"),
    "mxfp8-of-mxfp4": ("convert 0.2.0/mxfp4-modelopt", "--to mxfp8 --include *.down_proj"),
    "mxfp4-compressed-tensors": ("convert dense", "--to mxfp4 --dialect compressed-tensors --arithmetic modelopt"),
    "bf16": ("convert modelopt", "--to bf16"), "bf16-compressed-tensors": ("convert compressed-tensors", "--to bf16"),
    "bf16-fp8": ("convert fp8", "--to bf16"), "bf16-gpt-oss": ("convert gpt-oss", "--to bf16"), "bf16-gptq": ("convert gptq", "--to bf16"),
    "bf16-int4": ("convert int4", "--to bf16"),
    # Pruned and quantized.
    "quantize-modelopt": ("quantize dense", ""), "quantize-compressed-tensors": ("quantize dense", "--dialect compressed-tensors"),
    "prune": ("prune modelopt", ""), "prune-paired": ("prune modelopt", "--pattern 4:8-paired"),
    "prune-stats": ("prune 0.2.0/quantize-modelopt", STATS), "prune-mask": ("prune 0.2.0/quantize-modelopt", MASK),
    "quantize-pruned": ("quantize dense", "--pattern 2:4 --arithmetic compressed-tensors"),
    "quantize-mse": ("quantize dense", "--dialect compressed-tensors --arithmetic modelopt --block-scale mse --zero-block zero"),
    "quantize-four-over-six": ("quantize dense", "--block-scale four-over-six --exclude *q_proj --exclude *k_proj --exclude *v_proj"),
    "quantize-kept-scales": ("quantize dense", "--keep-global-scale 0.2.0/quantize-compressed-tensors"),
    "quantize-constant": ("quantize bf16", "--input-scale constant=0.5 --one-input-scale-a-layer"),
    "quantize-input-scales": ("quantize dense", ["--input-scale", "from source/dense-amax.safetensors"]),
    "quantize-fp8": ("quantize fp8", ""), "quantize-mxfp4": ("quantize gpt-oss", ""), "quantize-gptq": ("quantize gptq", ""),
    "quantize-deepseek-v4": ("quantize deepseek-v4", "--dialect deepseek-v4 --draft-experts keep"),
    "quantize-deepseek-v4-cast": ("quantize deepseek-v4", "--dialect deepseek-v4 --draft-experts cast --input-scale constant=2.0"),
    "quantize-mask": ("quantize dense", f"--pattern 2:4 {MASK}"), "quantize-gptq-stats": ("quantize dense", STATS),
    "quantize-joint": ("quantize dense", f"--pattern 2:4 {STATS}"),
    "quantize-paired": ("quantize dense", f"--pattern 4:8-paired {STATS} --dialect compressed-tensors"),
    "quantize-rtn": ("quantize dense", f"{STATS} --method rtn --include *.mlp.*"),
    "quantize-wanda": ("quantize dense", f"--pattern 2:4 {STATS} --method wanda"),
    "quantize-budget": ("quantize moe", f"--pattern 2:4 {COSTS} --budget 0.4"),
    "compress": ("compress dense", f"--to nvfp4 {TEXT}"), "compress-pruned": ("compress dense", f"--to nvfp4 --pattern 2:4 {TEXT}"),
    "compress-v7": ("compress moe", f"--to v7 {TEXT} --sequential layer"), "compress-none": ("compress dense", f"--to nvfp4 {TEXT} --sequential none"),
    # Rules.
    "recipe-mixed": ("convert moe", "--recipe source/mixed.yaml"),
    "recipe-mixed-compressed-tensors": ("convert moe", "--recipe source/mixed-compressed-tensors.yaml"),
    "recipe-layouts": ("convert moe", "--recipe source/layouts.yaml"), "recipe-stats": ("convert dense", f"--recipe source/solved.yaml {STATS}"),
    "recipe-deepseek-v4": ("convert deepseek-v4", "--recipe deepseek-v4-nvfp4"), "recipe-w4a16": ("convert modelopt", "--recipe w4a16"),
    "recipe-pruned": ("convert modelopt", "--recipe pruned-experts"),
    # Tensors of one checkpoint or two.
    "graft": ("graft 0.2.0/quantize-modelopt mtp", "--take mtp"), "graft-replaced": ("graft modelopt bf16", "--take *o_proj"),
    "drop": ("drop dense", "--modules *q_norm"), "drop-graft": ("drop 0.2.0/graft", "--modules mtp"),
    "drop-experts": ("drop moe", "--experts 1 --by source/moe-saliency.safetensors")}
VERSIONS = {"0.1.0": V01, "0.2.0": V02}
KEPT_STATS = {"compress": "source/compress-stats.safetensors", "compress-none": "source/compress-none-stats.safetensors"}
OUT, COPY = "OUT", "COPY"


def made_by(version, name, to):
  """The command that makes an artifact, and the paths that it reads."""
  (command, *read), more = VERSIONS[version][name][0].split(), VERSIONS[version][name][1]
  read = [r if "/" in r else "source/" + r for r in read]
  more = more.split() if isinstance(more, str) else more
  kept = ["--keep-stats", KEPT_STATS[name], "--force"] if name in KEPT_STATS and to == f"{version}/{name}" else []
  return [command, *read, to, *more, *kept], read, more


class RangeHandler(http.server.SimpleHTTPRequestHandler):
  """Parts of files, as a server of weights gives them."""

  def do_GET(self):
    path = pathlib.Path(self.translate_path(self.path))
    if not path.is_file():
      return self.send_error(404)
    content, wanted = path.read_bytes(), self.headers.get("Range")
    first, last = 0, len(content) - 1
    if wanted:
      first, last = (int(n) if n else last for n in wanted.removeprefix("bytes=").split("-"))
      last = min(last, len(content) - 1)
    self.send_response(206 if wanted else 200)
    self.send_header("Content-Length", str(last + 1 - first))
    self.send_header("ETag", '"1"')
    if wanted:
      self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
    self.end_headers()
    self.wfile.write(content[first:last + 1])

  def log_message(self, *_):
    pass


def run(twofour, words):
  with tempfile.TemporaryDirectory() as home:
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1", "XDG_CACHE_HOME": home}
    return subprocess.run([twofour, *words], cwd=HERE, capture_output=True, text=True, env=environment)


def make_artifacts(twofour, version):
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 8241), functools.partial(RangeHandler, directory=HERE / "source"))
  threading.Thread(target=server.serve_forever, daemon=True).start()
  sources.write(HERE / "source", version, lambda *words: run(twofour, words).check_returncode())
  shutil.rmtree(HERE / version, ignore_errors=True)
  (HERE / version).mkdir()
  for name in VERSIONS[version]:
    words, _, _ = made_by(version, name, f"{version}/{name}")
    done = run(twofour, [*words, "--quiet"])
    if done.returncode:
      print(f"{name}: {' '.join(words)}: {done.stderr}", end="")


# --- What a program says of them ---------------------------------------------------------------------------
def questions(version, name):
  """The commands whose outcomes are held: what reads an artifact, and what makes something else of it."""
  artifact = f"{version}/{name}"
  again, read, more = made_by(version, name, COPY)
  source = read[0].replace("http://127.0.0.1:8241/", "source/").rstrip("/")
  proof = ["validate", artifact, "--source", source, "--all-layers"]
  proof += ["--donor", read[1]] if len(read) == 2 else []
  for option in ("--stats", "--mask"):
    proof += [option, more[more.index(option) + 1]] if option in more else []
  if name in KEPT_STATS:
    proof += ["--stats", KEPT_STATS[name]]
  yield ["inspect", artifact, "--stats"]
  yield ["lint", artifact]
  yield ["card", artifact]
  yield ["diff", source, artifact]
  yield ["validate", artifact]
  yield proof
  if not read[0].startswith("http"):
    yield [*again, "--resume"]
  if source in ("source/dense", "source/moe"):
    yield ["eval", artifact, *TEXT.split(), "--limit", "1"]
  yield ["convert", artifact, OUT, "--to", "nvfp4"]
  yield ["convert", artifact, OUT, "--to", "bf16"]
  if again[0] in ("graft", "drop"):
    yield ["drop", artifact, OUT, "--modules", "*.norm", "--modules", "mtp"]
  if name.startswith("nvfp4"):
    yield ["prune", artifact, OUT]
  entry = json.loads((HERE / artifact / "config.json").read_text()).get("quantization_config", {})
  if entry.get("quant_method") == "twofour":
    yield ["run", artifact, "--layer", "0", "--random", "3", "-o", OUT]
    yield ["convert", artifact, OUT, "--to", "v7"]
    yield ["quantize", artifact, OUT]


def hash_tensors(directory):
  """Of names, types, shapes and bytes, whatever files hold them and in which order."""
  tensors, hasher = {}, hashlib.sha256()
  for file in directory.glob("*.safetensors"):
    tensors.update(c.read_safetensors(file))
  for name in sorted(tensors):
    dtype, shape, content = tensors[name]
    hasher.update(f"{name} {dtype} [{', '.join(map(str, shape))}]\n".encode() + content)
  return hasher.hexdigest()


def outcome(twofour, artifact, words):
  with tempfile.TemporaryDirectory() as folder:
    places = {OUT: pathlib.Path(folder) / "out", COPY: pathlib.Path(folder) / "copy"}
    if COPY in words:
      shutil.copytree(HERE / artifact, places[COPY])
    done = run(twofour, [*(str(places.get(w, w)) for w in words), "-j", "1"])
    entry = {"run": words, "code": done.returncode}
    if OUT in words and done.returncode == 0 and places[OUT].is_dir():
      entry["tensors"] = hash_tensors(places[OUT])
    return entry, done


def record_outcomes(twofour):
  lines = []
  for version, artifacts in VERSIONS.items():
    for name in artifacts:
      for words in questions(version, name):
        entry, done = outcome(twofour, f"{version}/{name}", words)
        # What is refused today may be taken some day.
        if entry["code"] == 2:
          continue
        lines.append(json.dumps({"artifact": f"{version}/{name}", **entry}))
        if entry["code"] and words[0] != "diff":
          print(f"{entry['code']}: {' '.join(words)}: {(done.stdout + done.stderr).strip().splitlines()[0]}")
  (HERE / "outcomes.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main():
  what, twofour = sys.argv[1], str(pathlib.Path(sys.argv[2]).resolve())
  if what == "outcomes":
    return record_outcomes(twofour)
  make_artifacts(twofour, run(twofour, ["--version"]).stdout.split()[1])


if __name__ == "__main__":
  main()
