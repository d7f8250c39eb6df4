#!/usr/bin/env bash
# Slurm, munge and MariaDB on Debian or Ubuntu, for `make test-slurm`. Starts nothing.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=300 update -qq
# The packages would start services; the tests start daemons of their own.
if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm /usr/sbin/policy-rc.d' EXIT
fi
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends \
    slurmctld slurmd slurm-client slurmdbd munge mariadb-server
