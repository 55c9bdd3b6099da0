import pytest

from dgz.errors import DGZError
from dgz.generators import CVAE, WGANGP, CenterMapper
from dgz.model import DGZ
from dgz.peers import CenterRidge
from dgz.settings import configure, file_name, grid, parse_seeds


@pytest.mark.parametrize(
    ("assignment", "name", "value"),
    [
        ("lambda_1=2", "lambda_1", 2),
        ("lambda_1 = .5", "lambda_1", 0.5),
        ("learning_rate=1e-3", "learning_rate", 1e-3),
        ("resample=True", "resample", True),
        ("verbose=false", "verbose", False),
        ("lr_step=none", "lr_step", None),
        ("lr_step=null", "lr_step", None),
        ("loss=plain", "loss", "plain"),
        ("device=0", "device", "0"),
        ("device=cuda:0", "device", "cuda:0"),
        ("generator.d_prior=16", "generator__d_prior", 16),
        ("generator.prior=false", "generator__prior", False),
        ("generator.hidden=[512, 256]", "generator__hidden", [512, 256]),
        ("generator.hidden=512,256", "generator__hidden", (512, 256)),
        ("generator=none", "generator", None),
    ],
)
def test_settings_are_read_from_text(assignment: str, name: str, value: object) -> None:
    model = DGZ(generator=WGANGP())
    assert configure(model, [assignment]) is model
    found = model.get_params()[name]
    assert (found, type(found)) == (value, type(value))


def test_a_setting_may_be_a_number_or_a_word() -> None:
    model = configure(CenterRidge(alpha=1.0), ["alpha=auto", "bandwidth=2"])
    assert (model.alpha, model.bandwidth) == ("auto", 2)


def test_a_generator_is_chosen_before_its_settings_are_made() -> None:
    model = configure(DGZ(), ["generator.kl_weight=0.5", "lambda_1=1", "generator=CVAE", "lambda_1=3"])
    assert isinstance(model.generator, CVAE)
    assert (model.generator.kl_weight, model.lambda_1) == (0.5, 3)
    configure(model, ["generator=CenterMapper"])
    assert model.generator.get_params() == CenterMapper().get_params()


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("lambda_1", "A setting is written key=value, found 'lambda_1'."),
        (
            "lamda_1=2",
            "There is no setting 'lamda_1'; did you mean 'lambda_1'? 'python -m pydoc dgz.model.DGZ' lists them all.",
        ),
        (
            "generator.epochs=2",
            "There is no setting 'generator.epochs'; did you mean 'generator.n_epochs'? "
            "'python -m pydoc dgz.generators.wgan.WGANGP' lists them all.",
        ),
        ("zzz=2", "There is no setting 'zzz'. 'python -m pydoc dgz.model.DGZ' lists them all."),
        ("lambda_1=two", "lambda_1 must be a number or auto, found 'two'."),
        ("lambda_1=true", "lambda_1 must be a number or auto, found 'true'."),
        ("lambda_1=none", "lambda_1 must be a number or auto, found 'none'."),
        ("lambda_1=CVAE", "lambda_1 must be a number or auto, found 'CVAE'."),
        ("n_epochs=1.5", "n_epochs must be a whole number, found '1.5'."),
        ("n_epochs=", "n_epochs must be a whole number, found ''."),
        ("resample=1", "resample must be true or false, found '1'."),
        ("lr_step=soon", "lr_step must be a whole number or none, found 'soon'."),
        ("loss=other", "loss must be one of revised, plain, incremental, adjusted, found 'other'."),
        (
            "generator=GAN",
            "generator must be one of WGANGP, CVAE, CenterMapper, ContrastiveWGANGP, SoulWGANGP, ZeroShotFlow, VAEGAN, "
            "FeedbackVAEGAN, CounterfactualVAEGAN, RefiningVAEGAN, AlignedVAEs, DisentanglingVAE or none, found 'GAN'.",
        ),
        (
            "generator.hidden=wide",
            "generator.hidden must be a list with a whole number in each place or a whole number or none, found 'wide'.",
        ),
        (
            "generator.hidden=[1, 'a']",
            "generator.hidden must be a list with a whole number in each place or a whole number or none, found \"[1, 'a']\".",
        ),
    ],
)
def test_settings_that_make_no_sense_are_explained(assignment: str, sentence: str) -> None:
    with pytest.raises(DGZError) as caught:
        configure(DGZ(generator=WGANGP()), [assignment])
    assert str(caught.value) == sentence


def test_settings_of_a_generator_that_is_not_there_are_explained() -> None:
    with pytest.raises(DGZError, match=r"There is no generator that could have the setting 'generator\.n_epochs'"):
        configure(DGZ(), ["generator.n_epochs=3"])


# --- Sweeps.
def test_a_grid_is_every_combination_in_order() -> None:
    assert grid(["lambda_1=0.5, 2", " gate =always,above_true"]) == [
        ["lambda_1=0.5", "gate=always"],
        ["lambda_1=0.5", "gate=above_true"],
        ["lambda_1=2", "gate=always"],
        ["lambda_1=2", "gate=above_true"],
    ]
    assert grid([], ["lambda_1=2"]) == [[]]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ("1", ["1"]),
        ("[512,256],[512]", ["[512,256]", "[512]"]),
        ("[512, 256]", ["[512, 256]"]),
        ("(8,),none,(16, 8)", ["(8,)", "none", "(16, 8)"]),
        ("1,,2", ["1", "", "2"]),
        ("1,2]", ["1,2]"]),
    ],
)
def test_commas_inside_brackets_part_no_values(values: str, parts: list[str]) -> None:
    assert grid([f"generator.hidden={values}"]) == [[f"generator.hidden={part}"] for part in parts]


def test_the_values_of_a_grid_are_read_like_any_setting() -> None:
    points = grid(["generator.hidden=[512,256],none", "lr_step=none,3", "generator=CVAE"])
    models = [configure(DGZ(), point) for point in points]
    assert [(model.generator.hidden, model.lr_step) for model in models if isinstance(model.generator, CVAE)] == [
        ([512, 256], None),
        ([512, 256], 3),
        (None, None),
        (None, 3),
    ]


@pytest.mark.parametrize(
    ("varied", "sentence"),
    [
        (["lambda_1"], "A varied setting is written key=value,value,…, found 'lambda_1'."),
        (["gate=always", "gate=above_true"], "gate is varied twice: give all its values at once, gate=value,value,…."),
        (["lambda_1=1,2"], "lambda_1 cannot be varied, since it is set to one value too."),
    ],
)
def test_a_grid_that_makes_no_sense_is_explained(varied: list[str], sentence: str) -> None:
    with pytest.raises(DGZError) as caught:
        grid(varied, ["lambda_1 = 3"])
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("text", "seeds"), [("1", [0]), ("5", [0, 1, 2, 3, 4]), ("0,3,7", [0, 3, 7]), ("7, 3", [7, 3]), ("3,", [3])]
)
def test_seeds_are_a_number_or_a_list(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "", "many", "1.5", "0,0", "0,,1", ",", "1,x"])
def test_seeds_that_make_no_sense_are_explained(text: str) -> None:
    with pytest.raises(DGZError) as caught:
        parse_seeds(text)
    expected = f"Seeds are a number from 1 up, or a list of different ones such as 0,3,7, found {text!r}."
    assert str(caught.value) == expected


def test_a_file_name_has_no_more_than_file_names_can_have() -> None:
    assert file_name(["lambda_1=0.5", "gate=always", "seed=0"]) == "lambda_1=0.5,gate=always,seed=0"
    assert file_name(["device=cuda:0"]) == "device=cuda-0"
    assert file_name(["a=../x y\\*?'z"]) == "a=..-xy----z"
