#!/usr/bin/env bash
# Sets CANN's environment where there is one, and runs the command in it. A new shell needs it again: `docker exec` too goes
# through this file.
set -eo pipefail

for script in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
  # shellcheck disable=SC1090  # it is CANN's, of the base image
  if [[ -f $script ]]; then source "$script"; fi
done
exec "$@"
