"""The one table of runs. Workflows, demo, tests and benchmarks read it, so that what is measured is what ships."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_HUB = "https://huggingface.co/"
_COMFY = _HUB + "Comfy-Org/"
_WAN22 = _COMFY + "Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/"
_WAN21 = _COMFY + "Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/"
_HUNYUAN = _COMFY + "HunyuanVideo_1.5_repackaged/resolve/main/split_files/"
_H3 = _COMFY + "MiniMax-H3/resolve/main/"
_LONGCAT = _HUB + "Kijai/LongCat-Video_comfy/resolve/main/"
_KIJAI = _HUB + "Kijai/WanVideo_comfy/resolve/main/"


@dataclass(frozen=True)
class ModelFile:
    """A file below ComfyUI's models folder; url is where an artist gets it (empty: made by tools/checkpoints.py); tiny
    is the random checkpoint that tests use in its place."""

    directory: str
    name: str
    url: str = ""
    tiny: str = ""


@dataclass(frozen=True)
class Expert:
    """One diffusion model and the sampling steps [start, end) it does."""

    title: str
    model: ModelFile
    start: int
    end: int
    lora: ModelFile | None = None


@dataclass(frozen=True)
class Run:
    """Everything that decides what a sampling run computes.

    family: the model's builder in tools/families.py. width, height in pixels; length in frames; shift as in
    ModelSamplingSD3 or WanVideoSampler; image: the clip starts from a picture; clip_vision, audio_vae: where the model
    has one; patch: the widgets of VC-Attention Patch that differ from its defaults; compare: the clip is made without
    the patch as well, and the two are compared; advice: a line for the note.
    """

    title: str
    family: str
    experts: tuple[Expert, ...]
    text_encoders: tuple[ModelFile, ...]
    vae: ModelFile
    width: int
    height: int
    length: int
    fps: int
    steps: int
    cfg: float
    shift: float
    sampler: str
    scheduler: str
    seed: int
    positive: str
    negative: str
    image: bool = False
    clip_vision: ModelFile | None = None
    audio_vae: ModelFile | None = None
    patch: dict = field(default_factory=dict)
    compare: bool = False
    advice: str = ""

    @property
    def files(self) -> list[ModelFile]:
        """Every model file of the run."""
        pairs = [file for expert in self.experts for file in (expert.model, expert.lora)]
        return [f for f in (*self.text_encoders, self.vae, self.audio_vae, self.clip_vision, *pairs) if f]

    @property
    def tokens(self) -> int:
        """Video tokens per attention call."""
        frames, pixels = (self.length - 1) // 4 + 1, 16
        if self.family == "h3":  # 17 frames in 5 latents, after the first 5 in 2
            frames, pixels = (self.length - 5) // 17 * 5 + 2, 32
        if self.family == "wan5b":
            pixels = 32
        return frames * (self.height // pixels) * (self.width // pixels)


def _diffusion(root: str, name: str, tiny: str = "") -> ModelFile:
    return ModelFile("diffusion_models", name, f"{root}diffusion_models/{name}", tiny)


def _experts(kind: str, steps: int, lora: str = "") -> tuple[Expert, Expert]:
    """Wan2.2's two experts, each half of the steps; `lora` is the version of its 4-step LoRA."""

    def expert(noise: str, start: int, end: int) -> Expert:
        model = _diffusion(
            _WAN22, f"wan2.2_{kind}_{noise}_noise_14B_fp8_scaled.safetensors", f"wan2.2_{kind}_{noise}_noise_tiny"
        )
        name = f"wan2.2_{kind}_lightx2v_4steps_lora_{lora}_{noise}_noise.safetensors"
        few = ModelFile("loras", name, f"{_WAN22}loras/{name}", "wan_lora_tiny") if lora else None
        return Expert(f"{noise} noise", model, start, end, few)

    return expert("high", 0, steps // 2), expert("low", steps // 2, steps)


def _text(root: str, name: str) -> ModelFile:
    return ModelFile("text_encoders", name, f"{root}text_encoders/{name}")


def _one(model: ModelFile, steps: int, lora: ModelFile | None = None) -> tuple[Expert]:
    return (Expert("model", model, 0, steps, lora),)


WAN22_T2V = Run(
    title="Wan2.2 text to video, 20 steps",
    family="wan",
    experts=_experts("t2v", 20),
    text_encoders=(_text(_WAN21, "umt5_xxl_fp8_e4m3fn_scaled.safetensors"),),
    vae=ModelFile("vae", "wan_2.1_vae.safetensors", _WAN22 + "vae/wan_2.1_vae.safetensors", "wan2.1_vae_tiny"),
    width=1280,
    height=720,
    length=81,
    fps=16,
    steps=20,
    cfg=3.5,
    shift=5.0,
    sampler="euler",
    scheduler="simple",
    seed=7,
    positive="A red fox trots along a snowy forest trail at dawn, breath steaming, low sun between birch trunks, "
    "camera gliding beside it, shallow depth of field.",
    negative="blurry, static, overexposed, subtitles, watermark, deformed, low quality",
)
WAN22_T2V_4_STEPS = replace(
    WAN22_T2V,
    title="Wan2.2 text to video, 4 steps with a LoRA",
    experts=_experts("t2v", 4, "v1.1"),
    steps=4,
    cfg=1.0,
)
WAN22_COMPARE = replace(
    WAN22_T2V_4_STEPS,
    title="Wan2.2 text to video, the same seed without and with VC-Attention",
    compare=True,
    advice="Everything is sampled twice, without the patch in the lower row. *VC-Attention Compare* shows how alike "
    "the two clips are and where they differ.",
)
WAN22_I2V = replace(WAN22_T2V, title="Wan2.2 image to video, 20 steps", experts=_experts("i2v", 20), image=True)
WAN22_5B_T2V = replace(
    WAN22_T2V,
    title="Wan2.2 5B text to video",
    family="wan5b",
    experts=_one(_diffusion(_WAN22, "wan2.2_ti2v_5B_fp16.safetensors", "wan2.2_ti2v_5b_tiny"), 20),
    vae=ModelFile("vae", "wan2.2_vae.safetensors", _WAN22 + "vae/wan2.2_vae.safetensors"),
    height=704,
    length=121,
    fps=24,
    cfg=5.0,
    shift=8.0,
    sampler="uni_pc",
    advice="Its frames have a quarter of the tokens that Wan2.2's large model has, so that attention is a smaller part "
    "of the time and less is gained.",
)
WAN22_5B_I2V = replace(WAN22_5B_T2V, title="Wan2.2 5B image to video", image=True)

_SIGCLIP = "sigclip_vision_patch14_384.safetensors"
HUNYUAN15_T2V = replace(
    WAN22_T2V,
    title="HunyuanVideo 1.5 text to video, 20 steps",
    family="hunyuan",
    experts=_one(_diffusion(_HUNYUAN, "hunyuanvideo1.5_720p_t2v_fp16.safetensors", "hunyuanvideo1.5_t2v_tiny"), 20),
    text_encoders=(
        _text(_HUNYUAN, "qwen_2.5_vl_7b_fp8_scaled.safetensors"),
        _text(_HUNYUAN, "byt5_small_glyphxl_fp16.safetensors"),
    ),
    vae=ModelFile("vae", "hunyuanvideo15_vae_fp16.safetensors", _HUNYUAN + "vae/hunyuanvideo15_vae_fp16.safetensors"),
    length=121,
    fps=24,
    cfg=6.0,
    shift=7.0,
)
HUNYUAN15_I2V = replace(
    HUNYUAN15_T2V,
    title="HunyuanVideo 1.5 image to video, 20 steps",
    experts=_one(_diffusion(_HUNYUAN, "hunyuanvideo1.5_720p_i2v_fp16.safetensors", "hunyuanvideo1.5_t2v_tiny"), 20),
    image=True,
    clip_vision=ModelFile("clip_vision", _SIGCLIP, f"{_COMFY}sigclip_vision_384/resolve/main/{_SIGCLIP}"),
)

_TURBO = "minimax_h3_fl2v_turbo_8step_v1.0_comfyui_bf16.safetensors"
_H3_MODEL = _diffusion(_H3, "minimax_h3_fl2va_pruned_int8_convrot.safetensors")
H3_T2V = replace(
    WAN22_T2V,
    title="MiniMax H3 text to video with sound, 20 steps",
    family="h3",
    experts=_one(_H3_MODEL, 20),
    text_encoders=(_text(_H3, "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors"),),
    vae=ModelFile("vae", "minimax_h3_video_vae_fp16.safetensors", _H3 + "vae/minimax_h3_video_vae_fp16.safetensors"),
    audio_vae=ModelFile(
        "vae", "minimax_h3_audio_vae_fp32.safetensors", _H3 + "vae/minimax_h3_audio_vae_fp32.safetensors"
    ),
    width=1344,
    height=768,
    length=124,
    fps=24,
    cfg=1.0,
    sampler="res_multistep",
    positive=WAN22_T2V.positive + " Audio: paws on snow, wind in the branches, a distant crow.",
    negative="",
    advice="The patch leaves the last block of this model at full precision: rounding costs far more there than in the "
    "others. `length` is 17 k + 5 frames. Needs ComfyUI 0.30 or newer.",
)
H3_I2V = replace(H3_T2V, title="MiniMax H3 image to video with sound, 20 steps", image=True)
H3_T2V_8_STEPS = replace(
    H3_T2V,
    title="MiniMax H3 text to video with sound, 8 steps with a LoRA",
    experts=_one(_H3_MODEL, 8, ModelFile("loras", _TURBO, f"{_HUB}lightx2v/Minimax-h3-Turbo/resolve/main/{_TURBO}")),
    steps=8,
)

_FEW = "LongCat_distill_lora_alpha64_bf16.safetensors"
_LONGCAT_MODEL = "LongCat_TI2V_comfy_fp8_e4m3fn_scaled_KJ.safetensors"
LONGCAT_T2V = replace(
    WAN22_T2V,
    title="LongCat-Video text to video, 10 steps with a LoRA",
    family="longcat",
    experts=_one(
        ModelFile("diffusion_models", _LONGCAT_MODEL, _LONGCAT + _LONGCAT_MODEL), 10,
        ModelFile("loras", _FEW, _LONGCAT + _FEW),
    ),
    text_encoders=(
        ModelFile("text_encoders", "umt5-xxl-enc-bf16.safetensors", _KIJAI + "umt5-xxl-enc-bf16.safetensors"),
    ),
    vae=ModelFile("vae", "Wan2_1_VAE_bf16.safetensors", _KIJAI + "Wan2_1_VAE_bf16.safetensors"),
    width=832,
    height=480,
    length=93,
    steps=10,
    cfg=1.0,
    shift=12.0,
    sampler="longcat_distill_euler",
    advice="Runs through the node pack ComfyUI-WanVideoWrapper, whose models need a patch node of their own. "
    "`rope_function` must stay at *comfy*.",
)  # fmt: skip
LONGCAT_I2V = replace(LONGCAT_T2V, title="LongCat-Video image to video, 10 steps with a LoRA", image=True)

# The demo's: a model small enough for this repository, trained by tools/tiny_video. No workflow is made of it.
TINY_WAN = replace(
    WAN22_T2V,
    title="Tiny Wan text to video, 12 steps",
    experts=_one(ModelFile("diffusion_models", "tiny_wan.safetensors"), 12),
    vae=ModelFile("vae", "tiny_wan_vae.safetensors"),
    width=256,
    height=256,
    length=17,
    steps=12,
    cfg=2.0,
    shift=3.0,
    seed=2,
    positive="blobs deforming",
    negative="",
    patch={"min_tokens": 256},
)

RUNS = {
    "wan2.2_t2v": WAN22_T2V,
    "wan2.2_t2v_4_steps": WAN22_T2V_4_STEPS,
    "wan2.2_t2v_compare": WAN22_COMPARE,
    "wan2.2_i2v": WAN22_I2V,
    "wan2.2_5b_t2v": WAN22_5B_T2V,
    "wan2.2_5b_i2v": WAN22_5B_I2V,
    "hunyuanvideo1.5_t2v": HUNYUAN15_T2V,
    "hunyuanvideo1.5_i2v": HUNYUAN15_I2V,
    "minimax_h3_t2v": H3_T2V,
    "minimax_h3_t2v_8_steps": H3_T2V_8_STEPS,
    "minimax_h3_i2v": H3_I2V,
    "longcat_t2v": LONGCAT_T2V,
    "longcat_i2v": LONGCAT_I2V,
}


def tiny(run: Run, **changes) -> Run:
    """The same run on the random checkpoints of tools/checkpoints.py: same graph, experts, split and sampler, but a
    clip of 256x256 pixels and 17 frames, and the patch accepting calls that short."""

    def stand_in(file: ModelFile | None) -> ModelFile | None:
        return ModelFile(file.directory, file.tiny + ".safetensors") if file and file.tiny else file

    experts = tuple(replace(e, model=stand_in(e.model), lora=stand_in(e.lora)) for e in run.experts)
    small = replace(
        run,
        title=run.title + ", tiny",
        experts=experts,
        vae=stand_in(run.vae),
        width=256,
        height=256,
        length=17,
        patch={**run.patch, "min_tokens": 64 if run.family == "wan5b" else 256},
    )
    return replace(small, **changes)
