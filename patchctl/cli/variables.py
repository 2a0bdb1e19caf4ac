"""Every environment variable of ours, for docs/environment.md; a test compares the table with what the code and the tests name."""

from __future__ import annotations

from collections.abc import Mapping

# By group and name: what it is for, and what holds where it is not set. Markdown of a page in docs/.
VARIABLES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Of every command": {
        "PATCHCTL_ROOT": (
            "the distribution, a folder or a bundle; `--root` wins",
            "the nearest folder upward with `manifests/`, else what `patchctl use` chose, else the installed one"
            " ([which](install.md#which-distribution-a-run-takes))",
        ),
        "PATCHCTL_RELEASE": (
            "the release of profiles, recipes and upstreams; `--release` wins",
            "the newest release on which the profile is proven",
        ),
        "PATCHCTL_WORKSPACE": (
            "the workspace, for commands that act on one and for scripts; `--workspace` wins. On a node of a cluster: at `ray start`",
            "`workspace`",
        ),
        "PATCHCTL_CACHE": (
            "the folder of sources and computed stacks, an absolute path; `--cache` wins",
            "`cache` of the user configuration, else `$XDG_CACHE_HOME/patchctl`, else `~/.cache/patchctl`",
        ),
        "PATCHCTL_CONFIG": (
            "the user configuration ([sources](sources.md))",
            "`$XDG_CONFIG_HOME/patchctl/config.yaml`, else `~/.config/patchctl/config.yaml`",
        ),
        "PATCHCTL_TORCH_PYTHON": (
            "the Python of training, with torch, for `preflight`, `doctor`, `prove`, `rebase`, `script` and tests; `--python` wins",
            "patchctl's own interpreter",
        ),
        "PATCHCTL_LANG": (
            "`en` or `zh-CN`, for what `apply`, `doctor`, `preflight`, `status` and `train.sh` print; `--lang` wins",
            "`LC_ALL`, else `LC_MESSAGES`, else `LANG`",
        ),
        "PATCHCTL_NO_PROGRESS": ("silences progress on standard error", "shown after two seconds"),
        "_PATCHCTL_COMPLETE": ("`bash_source`, `zsh_source` or `fish_source`: prints the shell's completion", ""),
        "PATCHCTL_SET": ("refused: the former name of `PATCHCTL_RELEASE`", ""),
    },
    "Of scripts": {
        "PATCHCTL_RAY_STATE_DIR": (
            "where `ray_cluster.sh` and `train.sh` remember the cluster; `--state` wins",
            "`$TMPDIR/patchctl-ray-$UID`",
        ),
        "PATCHCTL_RAY_STATE": ("set by `ray_cluster.sh` in what it starts, so that `stop` ends nothing else", ""),
        "PATCHCTL_HOST_ROOT": ("another root in which scripts look for NPUs and drivers, for tests", "`/`"),
    },
    "Of simulated NPUs": {
        "PATCHCTL_NPUS": ("number of NPUs that Ray sees", "1"),
        "PATCHCTL_NPU": ("kind of NPU that vllm-ascend sees, `A2` or `A3`", "`A3`"),
        "PATCHCTL_STANDINS": ("0 turns the stand-ins off ([demo](demo.md))", "on"),
        "PATCHCTL_STANDINS_WATCH": (
            "functions that a test has called after an import, as `MODULE=PLACE:FUNCTION,...`",
            "",
        ),
    },
    "Of tests and make": {
        "PATCHCTL_MIRRORS": (
            "folder of local git repositories, one an upstream; `make` sets it from `MIRRORS=DIR`",
            "tests that need them are skipped",
        ),
        "PATCHCTL_MBRIDGE": (
            "mbridge's git repository; `make` sets it from `MBRIDGE=DIR`",
            "tests that need it are skipped",
        ),
        "PATCHCTL_TREES": ("workspace with the patched trees, as `--trees`", "patchctl builds it"),
        "PATCHCTL_TEST_TREES": ("folder of the lists of files that sources are compared with", "`manifests/trees`"),
        "PATCHCTL_TEST_FORKS": ("0 starts every process of a test anew", "they are forked"),
        "PATCHCTL_PROOF_CACHE": ("where `prove` has its tests keep what several of them need; `prove` sets it", ""),
        "PATCHCTL_RAY_PYTHON": (
            "a Python that has Ray",
            "`PATCHCTL_TORCH_PYTHON`, else tests that need it are skipped",
        ),
        "PATCHCTL_TEST_RAYLET": ("set in every raylet that a test starts, to find it again", ""),
        "PATCHCTL_AISBENCH": ("the program `ais_bench`", "tests that need it are skipped"),
        "PATCHCTL_HISTORY": ("git repositories whose commits the engine replays", "those tests are skipped"),
        "PATCHCTL_HISTORY_COUNT": ("number of commits of each", "200"),
        "PATCHCTL_FUZZ_VERBS": ("number of damaged workspaces", "12"),
        "PATCHCTL_FUZZ_FIRST": ("number of the first", "0"),
        "PATCHCTL_TORTURE": ("number of system calls at which each scenario is stopped", "8"),
    },
}
