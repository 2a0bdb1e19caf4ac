# One image a profile: the patched trees, installed, with what they run on. docs/images.md explains it; scripts/build_image.sh
# builds it and labels it with what it holds. It builds with docker 20.10 and buildah 1.28: no heredoc, no COPY --link.
ARG BASE_IMAGE=quay.io/ascend/cann:9.1.0-a3-openeuler24.03-py3.12
# build_image.sh takes the base from the release's manifest (`images`).

# The system's packages, and patchctl in an environment of its own.
FROM ${BASE_IMAGE} AS system
# A base may name another user; RUN_AS is the image's.
# hadolint ignore=DL3002
USER 0
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PATCHCTL_ROOT=/opt/patchctl/distribution \
    PATCHCTL_WORKSPACE=/opt/patched \
    WORKSPACE=/opt/patched \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# The release that every patchctl in the image takes the profile on; empty: the newest on which it is proven.
ARG RELEASE=
ENV PATCHCTL_RELEASE=${RELEASE}
# For a package index of one's own. Each stage declares them: podman and buildah 1.28 hand no argument on.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PYTHON=python3
COPY scripts/image /opt/patchctl/image
RUN /opt/patchctl/image/system_packages.sh
COPY pyproject.toml README.md LICENSE NOTICE Dockerfile Dockerfile.into /opt/patchctl/distribution/
COPY patchctl /opt/patchctl/distribution/patchctl
COPY manifests /opt/patchctl/distribution/manifests
COPY patches /opt/patchctl/distribution/patches
COPY LICENSES /opt/patchctl/distribution/LICENSES
COPY scripts /opt/patchctl/distribution/scripts
COPY docs /opt/patchctl/distribution/docs
COPY standins /opt/patchctl/distribution/standins
COPY tests/behaviour /opt/patchctl/distribution/tests/behaviour
RUN --mount=type=cache,target=/root/.cache/pip \
    "${PYTHON}" -m venv /opt/patchctl/venv \
    && cp -r /opt/patchctl/distribution /tmp/distribution \
    && /opt/patchctl/venv/bin/pip install --quiet '/tmp/distribution[cyclonedx]' \
    && /opt/patchctl/venv/bin/pip uninstall --quiet --yes pip setuptools \
    && rm -r /tmp/distribution \
    && ln -s /opt/patchctl/venv/bin/patchctl /usr/local/bin/patchctl

# The sources, patched and verified. BUNDLE names a file of the build context, made by `patchctl bundle create`: then nothing
# is fetched. APPLY_OPTIONS are given to `patchctl apply`: --skip-unavailable, --without FEATURE, --source sdist ...
FROM system AS patched
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PROFILE=qwen3-235b
ARG BUNDLE=
ARG APPLY_OPTIONS=
ARG RUNTIME=yes
ARG PYTHON=python3
RUN --mount=type=cache,target=/root/.cache/patchctl --mount=type=bind,target=/context \
    RUNTIME="${RUNTIME}" /opt/patchctl/image/apply.sh "${PROFILE}" "${BUNDLE}" "${APPLY_OPTIONS}" "${PYTHON}"

# What the trees run on, then the trees themselves. RUNTIME=no leaves the former out, for a base that has it; NATIVE=yes builds
# vllm-ascend's operators, which needs CANN's compilers and what docs/images.md says.
FROM system AS image
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# The index of torch's CPU build, which x86_64 wants; empty where PIP_INDEX_URL has it.
ARG CPU_WHEELS=https://download.pytorch.org/whl/cpu/
# Huawei's index, which has a triton-ascend that the package index has not; empty where PIP_INDEX_URL has it.
ARG ASCEND_WHEELS=https://mirrors.huaweicloud.com/ascend/repos/pypi
ARG PROFILE=qwen3-235b
ARG RUNTIME=yes
# Packages of the lock that cannot be had where this is built.
ARG LEAVE_OUT=
ARG NATIVE=no
ARG COMPILERS=no
ARG PYTHON=python3
COPY --from=patched /opt/patched /opt/patched
RUN --mount=type=cache,target=/root/.cache \
    RUNTIME="${RUNTIME}" NATIVE="${NATIVE}" COMPILERS="${COMPILERS}" CPU_WHEELS="${CPU_WHEELS}" ASCEND_WHEELS="${ASCEND_WHEELS}" LEAVE_OUT="${LEAVE_OUT}" \
    /opt/patchctl/image/install.sh "${PROFILE}" "${PYTHON}"
ENV PATCHCTL_TORCH_PYTHON=${PYTHON}
LABEL org.opencontainers.image.title="patchctl" \
      org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause" \
      patchctl.profile="${PROFILE}" \
      patchctl.sbom="/opt/patchctl/sbom.cdx.json" \
      patchctl.statement="/opt/patchctl/statement.json" \
      patchctl.left_out="${LEAVE_OUT}"
# Reads every byte of the trees, hence the interval, takes no lock, and asks the interpreter whether it imports them. A shell,
# since docker knows no exit code but 0 and 1.
# hadolint ignore=DL3025
HEALTHCHECK --interval=10m --timeout=5m --start-period=1m \
    CMD patchctl verify --workspace /opt/patched --quiet && /opt/patchctl/image/imports.sh || exit 1
# Training needs the devices' group or root; `docker run --user` and RUN_AS choose another, and the trees are for all to read.
ARG RUN_AS=root
USER ${RUN_AS}
WORKDIR /opt/patched
ENTRYPOINT ["/opt/patchctl/image/entrypoint.sh"]
CMD ["/bin/bash"]
