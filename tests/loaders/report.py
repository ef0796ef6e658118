"""The table of checks: one line for each model and command."""
import time
import traceback


class Report:
  """Runs checks and remembers what came of them. A check passes if it throws nothing."""

  def __init__(self, verbose=False):
    self.rows, self.verbose, self.start = [], verbose, time.monotonic()

  def check(self, model, command, function):
    """Result of function, or None if it threw, which fails the line (model, command)."""
    try:
      result = function()
    except Exception as error:
      message = " ".join(str(error).split()) or type(error).__name__
      if not isinstance(error, AssertionError):
        message = f"{type(error).__name__}: {message}"
        if self.verbose:
          traceback.print_exc()
      self.add(model, command, message)
      return None
    self.add(model, command, None)
    return result

  def add(self, model, command, message):
    """A line with its failure, or None if it passed."""
    self.rows.append((model, command, message))
    if message or self.verbose:
      print(f"{'FAIL' if message else 'pass'}  {model}  {command}  {(message or '')[:400]}", flush=True)

  def failures(self):
    return [row for row in self.rows if row[2]]

  def print_table(self):
    """A line a model: passed of all, and the commands that failed."""
    print(f"\n{'model':44} pass/all  failed")
    for model in dict.fromkeys(row[0] for row in self.rows):
      rows = [row for row in self.rows if row[0] == model]
      failed = [command for _, command, message in rows if message]
      print(f"{model:44} {len(rows) - len(failed):4}/{len(rows):<4} {', '.join(failed)}")
    print(f"\n{len(self.rows) - len(self.failures())} of {len(self.rows)} checks passed in "
          f"{time.monotonic() - self.start:.0f} s")
