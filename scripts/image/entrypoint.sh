#!/usr/bin/env bash
# Sets CANN's environment where there is one, and runs the command in it. `docker exec` has to go through this file too.
# CANN's scripts read unset variables and use the status of tests, so that neither ends this one.

for script in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh; do
  # shellcheck disable=SC1090  # it is CANN's, of the base image
  if [[ -f $script ]]; then source "$script"; fi
done
exec "$@"
