"""The git repository of a directory: is it clean, and a branch with a commit for each change."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from unidle.errors import BadInput, CannotRun


class GitTree:
    """A working tree of git. Errors of its methods: CannotRun, with the message of git."""

    def __init__(self, top: Path) -> None:
        self.top = top

    @classmethod
    def of(cls, path: Path) -> GitTree | None:
        """The repository that a path is in; None if there is none, or no git."""
        folder = path if path.is_dir() else path.parent
        try:
            done = _git(folder, "rev-parse", "--show-toplevel")
        except OSError:
            return None
        return cls(Path(done.stdout.rstrip("\n"))) if done.returncode == 0 and done.stdout.strip() else None

    def dirty(self) -> list[str]:
        """Files that are changed or new, as ``git status`` has them."""
        return [
            line[3:] for line in self._run("status", "--porcelain", "--untracked-files=normal").splitlines()
        ]

    def branch(self) -> str:
        """The name of the branch, or the commit of a detached head."""
        done = _git(self.top, "symbolic-ref", "--quiet", "--short", "HEAD")
        return done.stdout.strip() or self._run("rev-parse", "HEAD").strip()

    def start_branch(self, name: str) -> None:
        """Make a branch here and check it out. Errors: BadInput if it exists."""
        if _git(self.top, "show-ref", "--verify", "--quiet", f"refs/heads/{name}").returncode == 0:
            raise BadInput(
                "exists already", field="--branch", value=name, remedy="name another one, or delete it"
            )
        self._run("checkout", "--quiet", "-b", name)

    def commit(self, files: list[str], message: str) -> str:
        """Commit these files alone; the commit."""
        self._run("commit", "--quiet", "--no-verify", "-m", message, "--", *files)
        return self._run("rev-parse", "HEAD").strip()

    def back_to(self, branch: str) -> None:
        """Check out another branch, with its files."""
        self._run("checkout", "--quiet", "--force", branch)

    def delete_branch(self, name: str) -> None:
        """Delete a branch with its commits."""
        self._run("branch", "--quiet", "-D", name)

    def _run(self, *words: str) -> str:
        done = _git(self.top, *words)
        if done.returncode:
            raise CannotRun(
                (done.stderr.strip() or done.stdout.strip() or "failed").splitlines()[-1],
                field=f"git {words[0]}",
                remedy="fix it, or take the patch of --diff",
            )
        return done.stdout


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment: Mapping[str, str] = {**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}
    return subprocess.run(
        ["git", "-c", "core.quotePath=false", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
