"""The program, run as users run it."""
import json
import pathlib
import shutil
import subprocess


class Program:
  """The twofour binary at this path."""

  def __init__(self, path):
    self.path = str(pathlib.Path(path).resolve(strict=True))

  def run(self, *args, code=0):
    """What the command printed. Throws unless it ended with this exit code."""
    done = subprocess.run([self.path, *map(str, args)], capture_output=True, text=True, timeout=600)
    if done.returncode != code:
      raise AssertionError(f"expected exit code {code}, found {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout + done.stderr

  def make(self, command, source, folder, *options, code=0):
    """Runs a command that writes folder, which is removed first. Returns folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pathlib.Path(folder).parent.mkdir(parents=True, exist_ok=True)
    self.run(command, "-q", source, folder, *options, code=code)
    return folder

  def refuse(self, command, source, folder, *options, reason):
    """Throws unless the command refuses for a reason with these words, and leaves nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    text = self.run(command, "-q", source, folder, *options, code=2)
    if reason.lower() not in text.replace(str(source), "").replace(str(folder), "").lower():
      raise AssertionError(f"expected a refusal for {reason}, found {text.strip()[-300:]}")
    if pathlib.Path(folder).exists():
      raise AssertionError("refused, and left an output")

  def lint(self, folder, rule=None):
    """Throws if lint has an error or a warning, but those of a rule that must find something."""
    done = json.loads(subprocess.run([self.path, "lint", "--json", str(folder)], capture_output=True, text=True).stdout)
    bad = [f for f in done["findings"] if f["severity"] in ("error", "warning")]
    if rule and all(f["rule"] != rule for f in bad):
      raise AssertionError(f"expected findings of {rule}, found none")
    bad = [f for f in bad if f["rule"] != rule]
    if bad:
      raise AssertionError(f"{len(bad)} findings: " + "; ".join(f"[{f['rule']}] {f['where']}: {f['message']}" for f in bad[:3]))

  def inspect(self, folder):
    return json.loads(self.run("inspect", "--json", folder))

  def validate(self, folder, source):
    self.run("validate", "-q", folder, "--source", source)

  def diff(self, a, b, *endings):
    """Throws unless a and b hold equal numbers under the same names, but for tensors with these endings."""
    self.run("diff", a, b, *(option for ending in endings for option in ("--exclude", f"*{ending}")))
