"""The configuration: reading, checking, merging, explaining and saving."""

import dataclasses
import re
import string
from pathlib import Path
from typing import Any, get_args

import hypothesis.strategies as st
import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from reference import schema

from minigpt.config import resolve as c
from minigpt.config import yaml as plain_yaml
from minigpt.config.aliases import ALIASES
from minigpt.config.presets import presets, read_preset
from minigpt.config.resolve import flatten, from_yaml, parse_overrides, resolve, to_yaml
from minigpt.config.schema import ModelConfig, RunConfig, TrainConfig
from minigpt.errors import ConfigError, UserError
from minigpt.paths import resource_path

SCHEMA = schema()


def overridden(*assignments: str) -> RunConfig:
    return resolve(parse_overrides(assignments)).config


def refused(*assignments: str) -> str:
    """Return the error of these assignments."""
    with pytest.raises(UserError) as caught:
        overridden(*assignments)
    return message_of(caught)


def message_of(caught: pytest.ExceptionInfo[UserError]) -> str:
    message = str(caught.value)
    assert message.replace("\n  ", "").isprintable(), "a problem is one line"
    return message


def file(folder: Path, text: str | bytes) -> str:
    path = folder / "my.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


# --- values --------------------------------------------------------------------------------------------


def with_other_value(key: str) -> RunConfig:
    """Return a configuration whose only setting is not the default."""
    field = c.fields()[key]
    words = re.findall(r"'(\w+)'", str(field.annotation))  # of literals
    for text in (*words, *(field.examples or ()), "false", "true", "8", "0.25"):
        try:
            config = overridden(f"{key}={text}")
        except ConfigError:
            continue
        if flatten(config)[key] != field.default:
            return config
    raise AssertionError(f"no other value of {key}")


@pytest.mark.parametrize("key", c.fields())
def test_every_setting_can_be_set_and_saved(key: str) -> None:
    config = with_other_value(key)
    assert from_yaml(to_yaml(config), "saved") == config
    jsonschema.validate(yaml.safe_load(to_yaml(config)), SCHEMA)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("model.context", "1e3", 1000),
        ("train.save_every", "4.0", 4),
        ("runtime.threads", "2.0", 2),
        ("optim.embedding_lr", ".5e-1", 0.05),
        ("optim.weight_decay", "+2E-2", 0.02),
        ("optim.grad_clip", "1.e1", 10.0),
        ("model.zero_init", "False", False),
        ("data.val_source", "[a.txt, b.txt]", ("a.txt", "b.txt")),
    ],
)
def test_values_of_the_command_line_have_the_type_of_the_setting(key: str, text: str, expected: Any) -> None:
    value = flatten(overridden(f"{key}={text}"))[key]
    assert (value, type(value)) == (expected, type(expected))


ODD_TEXTS = ("123", "1e5", "yes", "null", "", " ", "a=b", "[x]", "{y: 1}", "*.txt", "# no comment", "2020-01-01", "'q'")


@pytest.mark.parametrize("text", [*ODD_TEXTS, "\x85", "a\u2028 b\x85 ", "\ufeff漢\0😀", "\n\t"])
def test_the_value_of_a_text_setting_is_literal(text: str) -> None:
    """A saved text stays a text: 1e5 is a number in YAML."""
    config = overridden(f"sample.prompt={text}", f"data.encoding={text}")
    assert (config.sample.prompt, config.data.encoding) == (text, text)
    assert from_yaml(to_yaml(config), "saved") == config


@pytest.mark.parametrize(
    "source", ["-", "*.txt", "123", "no", "a: b.txt", "[ab]*.txt", "my #1.txt", "C:\\texts\\a.txt"]
)
def test_one_source_needs_no_quotes(source: str) -> None:
    """In YAML, `-` begins a list and `*.txt` is an alias."""
    assert overridden(f"data.source={source}").data.source == (source,)


def test_a_source_in_a_file_is_a_text_or_a_list(tmp_path: Path) -> None:
    for text, expected in (("a.txt", ("a.txt",)), ("[a.txt, b.txt]", ("a.txt", "b.txt"))):
        layer = read_preset(file(tmp_path, f"data: {{source: {text}}}"))
        assert resolve(*layer).config.data.source == expected


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("model.n_layer=true", "model.n_layer is true, but should be a whole number"),
        ("model.n_layer='6'", 'model.n_layer is "6", but should be a whole number'),
        ("model.n_layer=", "model.n_layer is null, but should be a whole number"),
        ("model.family=[a]", "model.family is [\"a\"], but should be 'classic', 'modern', 'rnn', 'lstm' or 'gru'"),
        ("model.n_layer=010", 'model.n_layer is "010", but should be a whole number'),  # in YAML 1.1: 8
        ("model.n_layer=0", "model.n_layer is 0, but should be at least 1"),
        ("model.n_layer=10000", "model.n_layer is 10000, but should be at most 1,000"),
        ("optim.lr=.nan", 'optim.lr is ".nan", but should be a number'),
        ("optim.lr=1e999", "optim.lr is Infinity, but should be a finite number"),
        ("optim.lr=0", "optim.lr is 0, but should be more than 0"),
        ("model.bias=yes", 'model.bias is "yes", but should be true or false'),
        ("runtime.compile=1", "runtime.compile is 1, but should be true or false or 'auto'"),
        ("runtime.threads=1000000", "runtime.threads is 1000000, but should be at most 1,024 or 'auto'"),
        ("runtime.device=cuda:x", "runtime.device is cuda:x, but should be auto, cpu, cuda, cuda:1 or mps"),
        ("model.norm=batch", "model.norm is batch, but should be 'layernorm' or 'rmsnorm'"),
        ("data.source=[]", "data.source is [], but should be at least one text"),
        ("data.source=[1]", "data.source is 1, but should be text"),
        ("n_layer=6", "n_layer: unknown setting; did you mean model.n_layer?"),
        ("train.lr=1", "train.lr: unknown setting; did you mean optim.lr?"),
        ("train.learnin_rate=1", "train.learnin_rate: unknown setting"),
        ("train.wamup=1", "train.wamup: unknown setting; did you mean optim.warmup?"),
        ("modle.n_layer=6", "modle.n_layer: unknown setting; did you mean model.n_layer?"),
        ("optim.learning_rate=1", "optim.learning_rate: unknown setting; use optim.lr"),
        ("warmup_iters=100", "warmup_iters: unknown setting; use optim.warmup (a fraction of the run)"),
        ("model=6", "model is a section; set a key in it"),
        ("model.n_embd=90", "model.n_embd (90) must be divisible by model.n_head (4): try model.n_embd=88"),
        (
            "model.n_embd=36",
            "model.position rotary needs an even head size; model.n_embd / model.n_head is 9: try model.n_embd=32",
        ),
        ("train.micro_batch_size=5", "train.batch_size (32) must be a multiple of train.micro_batch_size (5)"),
    ],
)
def test_an_error_names_the_wrong_value_and_the_expected_one(assignment: str, expected: str) -> None:
    assert refused(assignment) == f"configuration: {expected}"


@pytest.mark.parametrize("number", [2**63, 10**400, 1e19])
def test_no_number_exceeds_64_bits(number: float) -> None:
    """NumPy, torch and TensorBoard cannot use larger numbers."""
    numeric = [
        key for key, field in c.fields().items() if {int, float} & {field.annotation, *get_args(field.annotation)}
    ]
    problems = refused(*(f"{key}={number}" for key in numeric if key != "train.epochs"))
    assert len(numeric) > 30
    assert problems.count("should be less than 2^63") == len(numeric) - 1


def test_contradictions_between_several_settings() -> None:
    assert "sinusoidal needs an even model.n_embd, got 45" in refused(
        "model.position=sinusoidal", "model.n_embd=45", "model.n_head=5"
    )
    assert "optim.warmup and optim.decay must not add up" in refused(
        "optim.schedule=wsd", "optim.warmup=0.7", "optim.decay=0.4"
    )
    assert "train.steps and train.epochs cannot be set together" in refused("train.steps=5", "train.epochs=5")


def test_all_problems_are_reported_at_once_in_a_line_each() -> None:
    message = refused(
        "model.n_layer=x", "modle.n_head=2", "train.steps=1", "train.epochs=2", "model.n_head=0", "a\nb=1"
    )
    assert message.startswith("configuration: 5 problems:\n  ")
    assert len(message.split("\n")) == 6
    for part in ("n_layer is", "modle.n_head: unknown", "set together", "n_head is 0", "a\\nb: unknown setting"):
        assert message.count(part) == 1


def test_the_default_of_a_wrong_value_is_not_reported_as_a_contradiction() -> None:
    assert "divisible" not in refused("model.n_head=x", "model.n_embd=90")


def test_contradictions_of_right_values_are_reported_beside_wrong_values() -> None:
    message = refused("train.steps=x", "n_layers=3", "model.n_em=3", "model=3", "model.n_embd=97")
    assert message.startswith("configuration: 5 problems:\n  ")
    assert message.endswith("model.n_embd (97) must be divisible by model.n_head (4): try model.n_embd=96")


@pytest.mark.parametrize("word", ["no", "Yes", "on", "OFF", "1_000", "010", "0x10", "0o7", "1:30", "2020-01-01"])
def test_words_of_yaml_1_1_stay_text(word: str) -> None:
    config = from_yaml(f"sample: {{prompt: {word}}}\ndata: {{source: [{word}]}}", "my.yaml")
    assert (config.sample.prompt, config.data.source) == (word, (word,))
    assert from_yaml(to_yaml(config), "saved") == config


def test_an_assignment_needs_an_equals_sign() -> None:
    assert refused("model.n_layer") == "expected KEY=VALUE such as model.n_layer=6, got 'model.n_layer'"


# --- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model:\n  n_layer: 3\n  n_layer: 4\n", "line 2: not valid YAML: a key appears twice"),
        ("model:\n\tn_layer: 3\n", "line 2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML: but found another document"),
        ("- model\n", "expected sections such as 'model:', got [\"model\"]"),
        ("just words\n", "expected sections such as 'model:', got just words"),
        ("model:\n  n_layer: !!python/name:os.system\n", "line 2: not valid YAML: tags and aliases are not supported"),
        *((f"model: {{n_layer: {tag} 3}}\n", "tags and aliases") for tag in ("!!int", "!", "!x", "!<tag:x>", "!!str")),
        ("a: &x {n_layer: 1}\nmodel: {<<: *x}\n", "line 2: not valid YAML: tags and aliases are not supported"),
        ("model: {<<: {n_layer: 3}}\n", "model.<<: unknown setting"),
        ("model: {n_layer: " + "9" * 5000 + "}\n", "not valid YAML"),
        ("model: {n_layer: " + "[" * 5000, "not valid YAML: maximum recursion depth"),
        ("model: {? [a] : 1}\n", "not valid YAML: found unhashable key"),
        ("modle:\n", "modle: unknown setting; did you mean model?"),
        ("sample: {prompt: 123}\n", "sample.prompt is 123, but should be text"),
        ("a\0b: 1\n", "not valid YAML"),
        ("model: [" + "1, " * plain_yaml.LIMIT, "is longer than"),
        (b"sample: {prompt: \xff}\n", "'utf-8' codec can't decode byte 0xff"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_file_is_an_error(tmp_path: Path, text: str | bytes, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(*read_preset(file(tmp_path, text)))
    assert expected in message_of(caught)


def test_problems_name_the_line_of_the_file(tmp_path: Path) -> None:
    text = "# mine\nmodel:\n  n_layer: x\n  n_embd: 97\n\n  n_head: 4\ndata: {path: my.txt, source: 3}\nmax_iters: 9\n"
    mine = file(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        resolve(*read_preset(mine), parse_overrides(["optim.lr=x"]))
    assert message_of(caught).split("\n  ") == [
        "configuration: 6 problems:",
        f'{mine} line 3: model.n_layer is "x", but should be a whole number',
        f"{mine} line 6: model.n_embd (97) must be divisible by model.n_head (4): try model.n_embd=96",
        f"{mine} line 7: data.path: unknown setting; use data.source",
        f"{mine} line 7: data.source is 3, but should be text, or a list of texts",
        f"{mine} line 8: max_iters: unknown setting; use train.steps",
        'optim.lr is "x", but should be a number',
    ]


def test_a_key_that_is_no_word_has_no_line(tmp_path: Path) -> None:
    mine = file(tmp_path, "model:\n  true: 3\n")
    with pytest.raises(ConfigError) as caught:
        resolve(*read_preset(mine))
    assert message_of(caught) == f"configuration: {mine}: model.True: unknown setting"


def test_stored_settings_with_several_problems_give_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        from_yaml("optim: {name: x, lr: 0}", "config.yaml")
    assert str(caught.value).count("; ") == 1
    assert str(caught.value).isprintable()


def test_a_problem_of_the_command_line_names_no_line(tmp_path: Path) -> None:
    mine = file(tmp_path, "model: {n_layer: 2}")
    with pytest.raises(ConfigError, match=r"^configuration: model\.n_layer is 0"):
        resolve(*read_preset(mine), parse_overrides(["model.n_layer=0"]))


@pytest.mark.parametrize("text", ["", "# nothing\n", "\ufeff", "\ufeffmodel:\ntrain:\n"])
def test_an_empty_file_changes_nothing(tmp_path: Path, text: str) -> None:
    assert resolve(*read_preset(file(tmp_path, text))).config == RunConfig(train=TrainConfig(steps=c.DEFAULT_STEPS))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tinny", "no preset or file is named 'tinny'; did you mean tiny?"),
        ("zzz.yaml", "presets: nanogpt, nanogpt-cpu"),
        ("a\0b", "cannot read 'a\\x00b'"),
        ("x" * 5000, "xxxxx"),
        (".", "cannot read '.': "),
    ],
)
def test_a_file_that_cannot_be_read(name: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read_preset(name)
    assert expected in message_of(caught)


def test_a_file_in_the_current_folder_comes_before_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(*read_preset("tiny")).config.model.n_layer == 2
    Path("tiny").mkdir()  # a folder of that name is no configuration
    assert resolve(*read_preset("tiny")).config.model.n_layer == 2
    Path("tiny").rmdir()
    Path("tiny").write_text("model: {n_layer: 9}", encoding="utf-8")
    assert resolve(*read_preset("tiny")).config.model.n_layer == 9


# --- merging -------------------------------------------------------------------------------------------


def test_values_resolve_as_defaults_family_preset_command_line() -> None:
    preset = ("preset p", {"model.family": "classic", "model.bias": False, "model.n_layer": 3, "train.seed": 5})
    resolved = resolve(preset, parse_overrides(["train.seed=6", "model.dropout=0.1"]))
    rows = {key: (c.show(value), resolved.sources[key]) for key, value in c.flatten(resolved.config).items()}
    assert list(rows) == list(c.fields())
    assert rows["model.n_head"] == ("4", "default")
    assert rows["model.position"] == ("learned", "family classic")
    assert rows["model.bias"] == ("false", "preset p")
    assert rows["model.n_layer"] == ("3", "preset p")
    assert rows["train.seed"] == ("6", "command line")
    assert rows["model.dropout"] == ("0.1", "command line")
    assert rows["train.steps"] == ("2000", "default")
    assert rows["train.epochs"] == ("null", "default")
    assert rows["sample.prompt"] == ('"\\n"', "default")


def test_the_last_family_wins_and_other_settings_stay() -> None:
    preset = ("preset p", {"model.family": "classic", "model.qk_norm": True})
    model = resolve(preset, parse_overrides(["model.family=modern", "model.bias=true"])).config.model
    assert model == ModelConfig(family="modern", qk_norm=True, bias=True)


@pytest.mark.parametrize("length", ["steps=7", "epochs=2.5"])
def test_a_later_length_replaces_an_earlier_one(length: str) -> None:
    key, value = length.split("=")
    for earlier in ("steps", "epochs"):
        resolved = resolve(("preset p", {f"train.{earlier}": 11}), parse_overrides([f"train.{length}"]))
        lengths = {name: getattr(resolved.config.train, name) for name in ("steps", "epochs")}
        assert {name: found for name, found in lengths.items() if found is not None} == {key: float(value)}
        assert resolved.sources[f"train.{key}"] == "command line"
        assert all(resolved.sources[f"train.{name}"] == "default" for name in lengths if name != key)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ((), (0.03, "preset p")),
        (("optim.name=normuon",), (0.03, "preset p")),
        (("optim.name=adamw",), (0.003, "optimizer adamw")),
        (("optim.name=adamw", "optim.lr=0.01"), (0.01, "command line")),
        (("optim.name=adamw", "model.family=lstm"), (0.003, "optimizer adamw")),
    ],
)
def test_another_optimizer_has_its_own_rate(assignments: tuple[str, ...], expected: tuple[float, str]) -> None:
    resolved = resolve(("preset p", {"optim.lr": 0.03}), parse_overrides(assignments))
    assert (resolved.config.optim.lr, resolved.sources["optim.lr"]) == expected
    assert resolve(("run", flatten(resolved.config))).config == resolved.config


def test_unsetting_the_length_restores_the_default() -> None:
    resolved = resolve(("preset p", {"train.steps": 11}), parse_overrides(["train.steps=null"]))
    assert resolved.config.train.steps == c.DEFAULT_STEPS
    assert resolved.sources["train.steps"] == "default"


@pytest.mark.parametrize("name", presets())
def test_every_shipped_preset_loads_and_satisfies_the_schema(name: str) -> None:
    assert presets()[name], "a preset begins with a comment that describes it"
    resolved = resolve(*read_preset(name))
    assert f"preset {name}" in resolved.sources.values()
    shipped_as = yaml.safe_load(resource_path("configs", f"{name}.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(shipped_as, schema())


def test_a_file_may_start_from_a_preset(tmp_path: Path) -> None:
    resolved = resolve(*read_preset(file(tmp_path, "preset: tiny\ntrain: {epochs: 1}\nmodel: {n_layer: 3}")))
    config, tiny = resolved.config, resolve(*read_preset("tiny")).config
    assert (config.train.steps, config.train.epochs, config.model.n_layer) == (None, 1, 3)
    assert (config.data, config.model.n_embd) == (tiny.data, tiny.model.n_embd)
    assert resolved.sources["model.n_embd"] == "preset tiny"


@pytest.mark.parametrize(
    ("value", "expected"),
    [("tinny", "no preset is named tinny; did you mean tiny?"), ("[tiny]", "no preset is named"), ("''", "presets: ")],
)
def test_a_file_names_a_preset_that_does_not_exist(tmp_path: Path, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_preset(file(tmp_path, f"preset: {value}"))
    assert expected in message_of(caught)


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_leads_to_a_setting_or_an_option(name: str) -> None:
    key = ALIASES[name].partition(" ")[0]
    assert key in {*c.fields(), "RUN@STEP"} or key.startswith("--")
    assert name not in {setting.partition(".")[2] for setting in c.fields()} - {"seed", "min_lr"}
    assert f"{name}: unknown setting; use {key}" in refused(f"{name}=1")


# --- saving --------------------------------------------------------------------------------------------

ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(-2, 300),
    st.sampled_from(["auto", "cpu", "char", "", "6", "true", "1e-3"]),
    st.lists(st.text(string.ascii_letters) | st.integers(), max_size=2),
    st.dictionaries(st.text(string.ascii_letters), st.integers(), max_size=1),
)


@settings(max_examples=300)
@given(st.sampled_from(sorted(c.fields())), ODD_VALUES)
def test_the_schema_and_the_program_accept_the_same_values(key: str, value: Any) -> None:
    """Editors check a configuration against the schema."""
    section, name = key.split(".")
    try:
        resolve(("a file", {key: value}), complete=False)
    except ConfigError:
        is_accepted = False
    else:
        is_accepted = True
    if (key, value) != ("data.source", []):  # pydantic leaves this rule out of the schema
        assert jsonschema.Draft202012Validator(SCHEMA).is_valid({section: {name: value}}) == is_accepted


@pytest.mark.parametrize("wrong", [{"modle": {}}, {"model": {"n_layers": 3}}, {"model": 3}, {"train": {"steps": 0}}])
def test_the_schema_rejects_what_the_program_rejects(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_every_setting_has_a_description_for_help_schema_and_reference() -> None:
    for key, field in c.fields().items():
        section, name = key.split(".")
        described = SCHEMA["$defs"][f"{section.title()}Config"]["properties"][name]["description"]
        assert described == field.description
        assert described.endswith(".")
        assert "\n" not in described
        assert "|" not in described, "the reference has it in a table"


def test_what_may_change_on_resume_and_what_may_not() -> None:
    """Settings that affect the weights must stay. The text may move, but its content must be the same."""
    before = resolve(("run", {})).config
    free = {key for key in c.fields() if not c.changed_on_resume(before, with_other_value(key))}
    rhythm = ("steps", "epochs", "log_every", "eval_every", "save_every", "keep_last", "frames", "patience")
    expected = {f"train.{key}" for key in (*rhythm, "micro_batch_size")}
    expected |= {"data.source", "data.val_source", "data.encoding"}
    assert free == expected | {key for key in c.fields() if key.startswith(("runtime.", "sample."))}
    assert c.changed_on_resume(before, overridden("model.n_layer=6")) == ["model.n_layer is 4 in the run but 6 now"]


# --- frozen --------------------------------------------------------------------------------------------


def test_a_configuration_is_frozen() -> None:
    config = RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.model.n_layer = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve().config = config  # type: ignore[misc]


def test_settings_that_could_not_be_read_again_are_refused() -> None:
    few, many = (resolve(("test", {"data.source": ["a" * 1000] * count})).config for count in (100, 200))
    assert from_yaml(to_yaml(few), "saved") == few
    with pytest.raises(ConfigError, match=r"data\.source has too many entries"):
        to_yaml(many)
