"""Whether the kernel ended processes of a job for want of memory: SIGKILL alone does not say who sent it."""

from __future__ import annotations

from typing import Optional

from ..kernel import Tree, memory_limit, oom_kills

GIB = 1 << 30


class OomKills:
    """The OOM kills in the control group of this process since this was made; ``tree`` is another root in tests."""

    def __init__(self, tree: Optional[Tree] = None) -> None:
        self._tree = tree or Tree()
        self._before = oom_kills(self._tree)

    def sentence(self, host: str) -> Optional[str]:
        """What the kernel did on ``host``, which is this one; None: nothing, or it does not say."""
        now, limit = oom_kills(self._tree), memory_limit(self._tree)
        killed = 0 if now is None or self._before is None else now - self._before
        if killed <= 0:
            return None
        whose = "no limit" if limit is None else f"a limit of {limit / GIB:.3g} GiB"
        many = "process" if killed == 1 else "processes"
        return f"on {host} the kernel's OOM killer ended {killed} {many} of the job's control group, which has {whose}"
