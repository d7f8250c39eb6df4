# Sequences that are predicted, for their own sake (predict.smk) or to be learnt from (distil.smk).
SEARCHED_SEQUENCES = f"{RUN}/{{purpose}}/searched"
PREDICTIONS = f"{RUN}/predictions/{{key}}/step-{{step}}"
RELAXED = f"{RUN}/relaxed/{{key}}/step-{{step}}"
PREDICTIONS_GIVEN = f"{RUN}/predictions/given"
RELAXED_GIVEN = f"{RUN}/relaxed/given"


def predictions(wildcards):
    """What `all` asks for: nothing without sequences."""
    if CONFIG.predict.fasta is None:
        return []
    if CONFIG.predict.weights:
        if CONFIG.predict.relax:
            return f"{RELAXED_GIVEN}/.relaxed"
        return f"{PREDICTIONS_GIVEN}/.predicted"
    key, (_, config) = list(OF_KEY.items())[-1]
    step = config.training.steps
    if ASYNC:  # a training may end early
        step = published_at_end(key)[-1]
    result = (
        f"{RELAXED}/.relaxed" if CONFIG.predict.relax else f"{PREDICTIONS}/.predicted"
    )
    return result.format(key=key, step=f"{step:08d}")


def predict_options(wildcards):
    """Where alignments are, and the run's own settings of evaluation."""
    return shlex.join(predict_words(OF_KEY[wildcards.key][1].evaluation))


def predict_words(settings):
    words = ["--early-stop", str(CONFIG.predict.early_stop_angstrom)]
    words += alignment_options("predictions", CONFIG.predict)
    return [*words, *evaluation_options(settings, settings.max_length)]


def predict_given_weights(wildcards):
    """Without them Snakemake would take predictions that are there for up to date."""
    for path in CONFIG.predict.weights:
        if not path.exists():
            raise WorkflowError(
                f"predict.weights: {path}: no such weight file or checkpoint folder. Correct the path"
            )
    return [path.as_posix() for path in CONFIG.predict.weights]


def predict_first_weights(wildcards):
    return CONFIG.predict.weights[0].as_posix()


def predict_given_options(wildcards):
    """Options for given weights, all but the first of which they name; the rule names that one."""
    words = predict_words(CONFIG.evaluation)
    for path in CONFIG.predict.weights[1:]:
        words += ["--weights", path.as_posix()]
    return shlex.join(words)


def predict_given_command(wildcards, threads):
    """Options for given weights, and the configuration if some do not say which model they are of."""
    return with_configuration(
        predict_given_options(wildcards), CONFIG.predict.weights, wildcards, threads
    )


def alignment_options(purpose, wanted):
    """Where alignments are, of the sequences of a section."""
    if wanted.query_alone:
        return ["--query-alone"]
    found = wanted.alignments or f"{SEARCHED_SEQUENCES}/alignments".format(
        purpose=purpose
    )
    return ["--alignments", str(found)]


def evaluation_options(settings, max_length):
    """Passes, precision and seed as in evaluations."""
    used = {**settings.model_dump(mode="json"), "max_length": max_length}
    words = []
    for name in ("recycling", "precision", "max_length", "seed"):
        words += ["--set", f"evaluation.{name}={used[name]}"]
    return words


def searches(purpose, wanted):
    """Searches for the sequences of a section; none if their alignments are there."""
    if not wanted.searches:
        return []
    return expand(
        f"{SEARCHED_SEQUENCES}/rejected-search-{{part}}.tsv",
        purpose=purpose,
        part=[f"{part:05d}" for part in range(CONFIG.search.jobs)],
    )


def teacher_weights(wildcards):
    """The averaged weights that a training ends with, or given ones."""
    if wildcards.teacher == GIVEN:
        return (
            CONFIG.distillation.weights or CONFIG.training.initial_weights
        ).as_posix()
    steps = OF_KEY[wildcards.teacher][1].training.steps
    return f"{TRAINING.format(key=wildcards.teacher)}/step-{steps:08d}"


def teacher_mark(wildcards):
    """The file whose presence says that a teacher's weights are there."""
    weights = teacher_weights(wildcards)
    if wildcards.teacher == GIVEN:
        return weights
    return mark_of(wildcards.teacher, weights.rpartition("step-")[2])


def teacher_options(wildcards):
    """Where alignments are, and the settings of evaluation."""
    given = wildcards.teacher == GIVEN
    config = CONFIG if given else OF_KEY[wildcards.teacher][1]
    words = alignment_options("distilled", CONFIG.distillation)
    words += evaluation_options(config.evaluation, CONFIG.distillation.max_length)
    words += ["--part", f"{wildcards.part}/{CONFIG.distillation.jobs}"]
    return shlex.join(words)


def teacher_command(wildcards, threads):
    """Options for a teacher, and the configuration if its weights do not say which model it is."""
    options = teacher_options(wildcards)
    given = [Path(teacher_weights(wildcards))] if wildcards.teacher == GIVEN else []
    return with_configuration(options, given, wildcards, threads)


def with_configuration(options, weights, wildcards, threads):
    """Options, and the configuration unless all weights say which model they are of."""
    from scalefold.predict.members import says_model

    if all(says_model(path) for path in weights):
        return options
    return f"{options} {given_configuration(wildcards, threads)}"
