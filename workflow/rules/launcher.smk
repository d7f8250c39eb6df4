# How training is started: on this machine, or on the nodes of a cluster's job.


def launcher(wildcards, resources, threads):
    """What `scalefold` is started with: `processes` of them on each of `nodes` nodes."""
    nodes, processes = resources.nodes, resources.processes
    if nodes > 1 and in_container() and "://" in CONFIG.container:
        raise WorkflowError(
            f"container: {CONFIG.container} would be converted by each of {nodes} nodes for itself. "
            f"Run `apptainer pull scalefold.sif {CONFIG.container}` once, in a folder that all nodes "
            "see, and set container: scalefold.sif"
        )
    torchrun = f"{in_container()}scalefold-torchrun --nproc-per-node={processes}"
    if resources.get("mpi"):
        # The job's script is on the first node, and starts one task on each.
        threads = resources.tasks * threads // nodes
        return (
            f"{share(threads, processes)} {resources.mpi}"
            f" --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --cpus-per-task={threads}"
            # All ends when one task has, but not at once: the others may be about to leave in order.
            " --kill-on-bad-exit=0 --wait=60"
            f" {torchrun} --nnodes={nodes} --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID"
            " --rdzv-endpoint=$(hostname):$((20000 + SLURM_JOB_ID % 10000)) -m scalefold"
        )
    if processes > 1:
        return f"{share(threads, processes)} {torchrun} --standalone -m scalefold"
    return f"{in_container()}scalefold"


def evaluator(wildcards, resources):
    """What evaluates the checkpoints of a training run is started with."""
    program = f"{in_container()}scalefold"
    if resources.get("slurm_partition"):
        script = workflow.source_path("../scripts/beside_training.sh")
        return (
            f"bash {shlex.quote(script)} {wildcards.key} {resources.runtime} {program}"
        )
    return program


def share(threads, processes):
    """Each process's CPU threads: Snakemake has set those of the job, which all of them would take."""
    own = max(1, threads // processes)
    return f"OMP_NUM_THREADS={own} MKL_NUM_THREADS={own}"


def in_container():
    """Called where the processes are: what starts them on the nodes is not in the image."""
    deployment = workflow.deployment_settings
    is_used = DeploymentMethod.APPTAINER in deployment.deployment_method
    if CONFIG.container is None or not is_used:
        return ""
    arguments = f"--home {shlex.quote(os.getcwd())} {deployment.apptainer_args}"
    return f"apptainer exec {arguments} {shlex.quote(CONFIG.container)} "


def when_stopped(wildcards, resources):
    """What follows on a training run that did not end.

    After exit code 75, stopped before the end, a cluster's job queues up again, as itself. On this
    machine a mark tells the evaluation beside it.
    """
    if resources.get("mpi"):
        return (
            "{ [ $? -eq 75 ] && scontrol requeue $SLURM_JOB_ID && sleep 600; exit 1; }"
        )
    if resources.get("slurm_partition"):
        return "exit"
    return f"{{ touch {shlex.quote(FAILED.format(key=wildcards.key))}; exit 1; }}"
