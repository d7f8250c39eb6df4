# Functions: what `scalefold predict` is given, for the sequences of `predict.fasta`, and for those of
# `distillation.fasta`, used for training.
SEQUENCES = {"predictions": CONFIG.predict, "distilled": CONFIG.distillation}
PARTS = [f"{part:05d}" for part in range(CONFIG.search.jobs if CONFIG.search else 0)]


def searches(purpose):
    """Searches for sequences; none if their alignments are there."""
    if not SEQUENCES[purpose].searches:
        return []
    searched = f"{RUN}/{purpose}/searched/rejected-search-{{part}}.tsv"
    return expand(searched, part=PARTS)


def predictions(wildcards):
    """What `all` asks for: nothing without sequences."""
    if CONFIG.predict.fasta is None:
        return []
    if CONFIG.predict.weights:
        of = GIVEN
    else:
        key, config = list(TRAININGS.items())[-1]
        # With an evaluation beside it, a training run may end early.
        step = published_at_end(key)[-1] if ASYNC else config.training.steps
        of = f"{key}/step-{step:08d}"
    if CONFIG.predict.relax:
        return f"{RUN}/relaxed/{of}/.relaxed"
    return f"{RUN}/predictions/{of}/.predicted"


def alignment_options(purpose):
    """Where alignments of sequences are."""
    given = SEQUENCES[purpose]
    if given.query_alone:
        return ["--query-alone"]
    folder = given.alignments or f"{RUN}/{purpose}/searched/alignments"
    return ["--alignments", str(folder)]


def common_options(purpose, evaluation, max_length):
    """Alignments; passes, precision and seed as in evaluations."""
    words = alignment_options(purpose)
    used = {**evaluation.model_dump(mode="json"), "max_length": max_length}
    for name in ("recycling", "precision", "max_length", "seed"):
        words += ["--set", f"evaluation.{name}={used[name]}"]
    return words


def predict_options(wildcards):
    """Options of `scalefold predict`, but for the first weights, which the rule names."""
    evaluation = TRAININGS.get(wildcards.get("key"), CONFIG).evaluation
    words = ["--early-stop", str(CONFIG.predict.early_stop_angstrom)]
    words += common_options("predictions", evaluation, evaluation.max_length)
    for path in CONFIG.predict.weights[1:]:
        words += ["--weights", path.as_posix()]
    return shlex.join(words)


def teacher_options(wildcards):
    """The same for sequences to be learnt from."""
    evaluation = TRAININGS.get(wildcards.teacher, CONFIG).evaluation
    given = CONFIG.distillation
    words = common_options("distilled", evaluation, given.max_length)
    return shlex.join([*words, "--part", f"{wildcards.part}/{given.jobs}"])


def with_model(options, weights):
    """The same options, and the configuration unless all given weights say their model."""

    def extended(wildcards, threads):
        from scalefold.predict.members import says_model

        if all(says_model(path) for path in weights(wildcards)):
            return options(wildcards)
        return f"{options(wildcards)} {given_configuration(wildcards, threads)}"

    return extended


def predict_weights(wildcards):
    """Given weights. Without the check Snakemake would take their predictions for up to date."""
    for path in CONFIG.predict.weights:
        if not path.exists():
            raise WorkflowError(
                f"predict.weights: {path}: no such weight file or checkpoint folder. Correct the path"
            )
    return [path.as_posix() for path in CONFIG.predict.weights]


def given_teacher(wildcards):
    """Given weights that predict what is learnt from, if it is these that do."""
    given = CONFIG.distillation.weights or CONFIG.training.initial_weights
    return [given] if wildcards.teacher == GIVEN else []


def teacher_weights(wildcards):
    """The averaged weights that a training run ends with, or given ones."""
    if wildcards.teacher == GIVEN:
        return given_teacher(wildcards)[0].as_posix()
    steps = TRAININGS[wildcards.teacher].training.steps
    return checkpoint_folder(wildcards.teacher, steps)


def teacher_mark(wildcards):
    """The file whose presence says that a teacher's weights are there."""
    weights = teacher_weights(wildcards)
    is_given = wildcards.teacher == GIVEN
    return weights if is_given else mark_of(wildcards.teacher, weights)
