"""What every step of a rebase needs."""

from __future__ import annotations

from patchctl.maintain.rebase_state import Place, Stage, State
from patchctl.maintain.regenerating import Regeneration
from patchctl.maintain.resolutions import Resolutions
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import loads
from patchctl.manifest.types import Stack
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress
from patchctl.values import dataclass


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
