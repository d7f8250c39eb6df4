#!/usr/bin/env bash
# Runs a command beside a training run, both as jobs of a Slurm cluster:
#     beside_training.sh KEY MINUTES COMMAND...
# While the training waits in the queue, this job waits there, too: it holds no GPU. It ends when the
# training has left the queue and the command has run since. MINUTES is its time limit, before which it
# queues up again.
set -euo pipefail
key=$1 minutes=$2
shift 2

# Snakemake gives all jobs of a run one name, and names the rule in the comment.
name=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%j)
state_of_training() {
    squeue --noheader --name="$name" --states=all --format="%k %T" |
        awk -v comment="rule_train_wildcards_$key" '
            $1 == comment && $2 ~ /PENDING|CONFIGURING|RUNNING|SUSPENDED|REQUEUE/ { state = $2 }
            END { print state }'
}

queue_up() {
    scontrol requeue "$SLURM_JOB_ID"
    sleep 600 # Slurm ends the job meanwhile
    exit 1
}

while true; do
    before=$(state_of_training)
    seconds=$((60 * minutes - 120 - SECONDS))
    if [ "$before" = PENDING ] || [ $seconds -le 0 ]; then queue_up; fi
    ended=0
    timeout $seconds "$@" || ended=$?
    if [ $ended -eq 124 ]; then queue_up; fi
    if [ $ended -ne 0 ]; then exit $ended; fi
    # It may not have been submitted yet, or just be submitted again.
    if [ -z "$before" ] && [ -z "$(state_of_training)" ]; then break; fi
    sleep 5
done
echo "the training has left the queue"
