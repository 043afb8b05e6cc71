"""Students: which layers stay, how wide a fresh one is, and that what is built is what a reload gives."""

import pytest
import torch
import transformers as tf

from distill_core import models, students
from distill_core.catalog import facts
from distill_core.catalog.shapes import check_window, fresh_shape, kept_layers, student_facts
from distill_core.config import DistillConfig, StudentConfig, TeacherConfig, TextConfig, TrainConfig
from distill_core.errors import ConfigError, ModelError, VocabularyError
from distill_core.structure import layer_list

V = 61
PLAIN = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GEMMA3 = {**PLAIN, **IDS, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, "max_position_embeddings": 64}


class Tokenizer:
    """As much of a tokenizer as a student needs."""

    bos_token_id, eos_token_id, pad_token_id = 1, 2, 0

    def get_vocab(self):
        return {f"t{index}": index for index in range(V - 3)}


def saved(tmp_path, config, name="teacher"):
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / name)
    return str(tmp_path / name)


def build(source, student, *, seed=0, window_tokens=16):
    config = DistillConfig(
        teacher=TeacherConfig(model=source),
        student=student,
        train=TrainConfig(seed=seed),
        text=TextConfig(window_tokens=window_tokens),
    )
    return students.build_student(config, tokenizer=Tokenizer(), real_vocab_size=V - 3)


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 15)[None]).logits


@pytest.mark.parametrize(
    ("count", "of", "kept"),
    [
        (2, 4, (0, 3)),
        (1, 4, (0,)),
        (4, 4, (0, 1, 2, 3)),
        (3, 5, (0, 2, 4)),
        (15, 30, (0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29)),
    ],
)
def test_kept_layers_are_first_last_and_evenly_between(count, of, kept):
    assert kept_layers(StudentConfig(init="prune_layers", num_layers=count), of) == kept


def test_layers_that_do_not_exist_are_refused_with_the_range():
    with pytest.raises(ConfigError, match=r"\[0, 9\].*layers 0 to 5.*drop \[9\]"):
        kept_layers(StudentConfig(init="prune_layers", keep_layers=(0, 9)), 6)
    with pytest.raises(ConfigError, match=r"num_layers 7.*has 6 layers.*1 to 6"):
        kept_layers(StudentConfig(init="prune_layers", num_layers=7), 6)


TEACHER = {"num_layers": 30, "hidden_size": 576, "intermediate_size": 1536, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64}


def test_fresh_shape_by_hand():
    """SmolLM2-135M: 288 wide; 4 heads of 72 lie nearer to 64 than 6 of 48; a third of 4 is 1 key-value head; 768 = 1536 / 2."""
    shape = fresh_shape(TEACHER, StudentConfig())
    assert vars(shape) == {
        "num_layers": 15,
        "hidden_size": 288,
        "intermediate_size": 768,
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 72,
    }


def test_heads_with_a_width_of_their_own_keep_it():
    qwen3 = {"num_layers": 28, "hidden_size": 1024, "intermediate_size": 3072, "num_heads": 16, "num_kv_heads": 8, "head_dim": 128}
    shape = fresh_shape(qwen3, StudentConfig())
    assert (shape.hidden_size, shape.num_heads, shape.num_kv_heads, shape.head_dim) == (512, 8, 4, 128)


@pytest.mark.parametrize(
    ("student", "words"),
    [
        (StudentConfig(hidden_size=97), "hidden_size 97.*98"),
        (StudentConfig(hidden_size=96, num_attention_heads=5), "num_attention_heads 5.*hidden_size 96.*Use 3, 4, 6"),
        (StudentConfig(hidden_size=96, num_attention_heads=32), "even width"),  # heads of 3 numbers cannot be turned in pairs
    ],
)
def test_widths_that_do_not_divide_are_refused_in_words(student, words):
    with pytest.raises(ConfigError, match=words):
        fresh_shape(TEACHER, student)


def test_pruning_nothing_gives_the_teacher(tmp_path):
    source = saved(tmp_path, tf.LlamaConfig(**PLAIN, **IDS))
    student = build(source, StudentConfig(init="prune_layers", keep_layers=tuple(range(6))))
    assert torch.equal(logits(student), logits(models.load_model(source)))


@pytest.mark.parametrize(
    "config",
    [
        tf.LlamaConfig(**PLAIN, **IDS),
        tf.Qwen3Config(**PLAIN, **IDS, head_dim=8, num_key_value_heads=2),
        tf.Gemma3TextConfig(**GEMMA3, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2),
        tf.GPT2Config(vocab_size=V, n_embd=32, n_layer=6, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2),
        tf.GPTNeoXConfig(**PLAIN, **{**IDS, "pad_token_id": None}),
    ],
    ids=lambda config: config.model_type,
)
def test_pruned_layers_are_the_teachers_and_survive_a_reload(tmp_path, config):
    source = saved(tmp_path, config)
    keep = (0, 2, 5)
    student = build(source, StudentConfig(init="prune_layers", keep_layers=keep))
    teacher = models.load_model(source)
    stack = next(module for module in teacher.modules() if isinstance(module, torch.nn.ModuleList))
    smaller = next(module for module in student.modules() if isinstance(module, torch.nn.ModuleList))
    assert student.config.num_hidden_layers == len(smaller) == 3
    for place, layer in enumerate(keep):
        for (name, ours), (_, theirs) in zip(smaller[place].named_parameters(), stack[layer].named_parameters(), strict=True):
            assert torch.equal(ours, theirs), name
    assert {module.layer_idx for module in smaller.modules() if hasattr(module, "layer_idx")} <= {0, 1, 2}
    if config.model_type == "gemma3_text":
        assert student.config.layer_types == ["sliding_attention", "full_attention", "full_attention"]
    student.save_pretrained(tmp_path / "student")
    assert torch.equal(logits(models.load_model(str(tmp_path / "student"))), logits(student))


@pytest.mark.parametrize(
    "config",
    [
        tf.LlamaConfig(**PLAIN, **IDS, tie_word_embeddings=True),
        tf.Qwen3Config(**PLAIN, **IDS, head_dim=16, num_key_value_heads=2),
        tf.Gemma3TextConfig(**GEMMA3),
        tf.GraniteConfig(**PLAIN, **IDS, attention_multiplier=1 / 8),
        tf.OlmoConfig(**PLAIN, **IDS),
        tf.GPT2Config(vocab_size=V, n_embd=32, n_layer=6, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2),
        tf.GPTNeoXConfig(**PLAIN, **{**IDS, "pad_token_id": None}),
        tf.PhiConfig(**PLAIN, **IDS),
    ],
    ids=lambda config: config.model_type,
)
def test_a_fresh_student_is_the_teachers_family_in_small(tmp_path, config):
    source = saved(tmp_path, config)
    student = build(source, StudentConfig(hidden_size=16, num_layers=2))
    assert type(student).__name__ == type(models.load_model(source)).__name__
    assert (student.config.hidden_size, student.config.num_hidden_layers, student.config.vocab_size) == (16, 2, V - 3)
    assert student.get_output_embeddings().weight.shape == (V - 3, 16)
    assert student.dtype == torch.float32
    assert torch.isfinite(logits(student)).all()
    if config.model_type == "granite":
        assert student.config.attention_multiplier == pytest.approx(1 / (16 // student.config.num_attention_heads))
    student.save_pretrained(tmp_path / "student")
    assert torch.equal(logits(models.load_model(str(tmp_path / "student"))), logits(student))


def test_the_seed_decides_and_nothing_else_is_touched(tmp_path):
    source = saved(tmp_path, tf.LlamaConfig(**PLAIN, **IDS))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (logits(build(source, StudentConfig(hidden_size=16), seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_pretrained_student_goes_through_the_vocabulary_gate(tmp_path, monkeypatch):
    source = saved(tmp_path, tf.LlamaConfig(**PLAIN, **IDS))
    monkeypatch.setattr(models, "load_tokenizer", lambda *_, **__: Tokenizer())
    assert build(source, StudentConfig(init="pretrained", model=source)).config.num_hidden_layers == 6

    class Other(Tokenizer):
        def get_vocab(self):
            return {**super().get_vocab(), "t7": 8, "t8": 7}

    monkeypatch.setattr(models, "load_tokenizer", lambda *_, **__: Other())
    with pytest.raises(VocabularyError, match=r"differ in 2 tokens: id 7 is 't7' and 't8'; id 8"):
        build(source, StudentConfig(init="pretrained", model=source))


def test_windows_longer_than_the_positions_are_refused(tmp_path):
    source = saved(tmp_path, tf.LlamaConfig(**PLAIN, **IDS, max_position_embeddings=64))
    with pytest.raises(ConfigError, match=r"window_tokens 128.*64 positions"):
        build(source, StudentConfig(hidden_size=16), window_tokens=128)
    with pytest.raises(ConfigError, match=r"window_tokens 1,024 .*512 positions of builtin"):
        check_window(facts("builtin"), 1024)


def test_models_whose_layers_cannot_be_told_are_refused():
    two = torch.nn.ModuleList([torch.nn.ModuleList([torch.nn.Linear(1, 1)] * 3)])
    two.extra = torch.nn.ModuleList([torch.nn.Linear(1, 1)] * 3)
    two.config = tf.LlamaConfig(num_hidden_layers=3)
    with pytest.raises(ModelError, match="model odd: 2 of its parts could be its 3 layers"):
        layer_list(two, 3, "odd")


@pytest.mark.parametrize(
    "student",
    [
        StudentConfig(),
        StudentConfig(hidden_size=96, num_layers=2, num_attention_heads=3, intermediate_size=256),
        StudentConfig(init="prune_layers"),
        StudentConfig(init="prune_layers", keep_layers=(0, 1, 3)),
        StudentConfig(init="pretrained", model="builtin"),
    ],
    ids=lambda student: f"{student.init}-{student.num_attention_heads}",
)
def test_facts_of_a_student_are_those_of_the_built_one(student):
    config = DistillConfig(student=student)
    told = student_facts(config, facts("builtin"))
    built = students.build_student(config, tokenizer=models.load_tokenizer("builtin"), real_vocab_size=2048)
    assert built.num_parameters() == told.num_parameters
    assert built.config.num_hidden_layers == told.num_layers
    assert built.config.hidden_size == told.hidden_size
