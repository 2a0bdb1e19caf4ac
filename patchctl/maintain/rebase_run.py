"""What every step of a rebase needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from patchctl.git.worktree import WorkTree
from patchctl.maintain.rebase_state import Place, Stage, State
from patchctl.maintain.regenerating import Regeneration
from patchctl.maintain.resolutions import Resolutions
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import loads
from patchctl.manifest.types import Stack
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress


@dataclass(frozen=True)
class Run:
    """What every step needs: the distribution, the work tree's place, where history may be asked."""

    dist: Distribution
    place: Place
    options: SourceOptions
    progress: Progress

    def store(self, state: State) -> Resolutions:
        return Resolutions(self.dist.root, state.upstream)

    def regeneration(self, state: State) -> Regeneration:
        return Regeneration(self.dist.upstream(state.upstream), state.python)


_HELD = "refs/patchctl/rebase/"


def hold(work: WorkTree, state: State) -> None:
    """Keep from a collection what the rebase needs and no branch has: the patches to come, those that there were, the revisions."""
    wanted = {state.old_base, state.old_commits[-1], *(s.base for s in state.stages), *(c for _, c in state.todo[-1:])}
    let_go(work, but=wanted)
    work.git("update-ref", "--stdin", stdin="".join(f"update {_HELD}{c} {c}\n" for c in sorted(wanted)).encode())


def let_go(work: WorkTree, but: Collection[str] = ()) -> None:
    """Take these references away."""
    names = work.git("for-each-ref", "--format=%(refname)", _HELD).decode().split()
    gone = [name for name in names if name.removeprefix(_HELD) not in but]
    if gone:
        work.git("update-ref", "--stdin", stdin="".join(f"delete {name}\n" for name in gone).encode())


def is_held(reference: str) -> bool:
    return reference.startswith(_HELD)


def new_stack(state: State) -> Stack:
    """The stack that is to be, as its manifest says without patches."""
    return loads(state.manifest.encode(), Stack, f"{state.new}.yaml").value


def generated_in(state: State) -> list[str]:
    """The files of the work tree that no commit has, since upstream's build would write them."""
    return [g.path for g in new_stack(state).generated]


def stage_of(state: State) -> Stage:
    """The revision that is being gone to."""
    return state.stages[state.stage]


def base_before(state: State) -> str:
    """The revision that the patches come from in this stage."""
    return state.stages[state.stage - 1].base if state.stage else state.old_base
