"""The one table of runs. Workflows, demo, tests and benchmarks read it, so that what is measured is what ships."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

_WAN22 = "https://huggingface.co/Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/"
_WAN21 = "https://huggingface.co/Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/"


@dataclass(frozen=True)
class ModelFile:
    """A file below ComfyUI's models folder; url is where an artist gets it (empty: made by tools/checkpoints.py)."""

    directory: str
    name: str
    url: str = ""


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
    """Everything that decides what a sampling run computes. width, height in pixels; length in frames; shift as in
    ModelSamplingSD3; patch: the widgets of VC-Attention Patch that differ from its defaults."""

    title: str
    experts: tuple[Expert, ...]
    text_encoder: ModelFile
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
    patch: dict = field(default_factory=dict)

    @property
    def files(self) -> list[ModelFile]:
        """Every model file of the run."""
        pairs = [(expert.model, expert.lora) for expert in self.experts]
        return [self.text_encoder, self.vae, *(file for pair in pairs for file in pair if file)]

    @property
    def tokens(self) -> int:
        """Video tokens per attention call: latent frames x height/16 x width/16 (VAE 4x8x8, patches 1x2x2)."""
        return ((self.length - 1) // 4 + 1) * (self.height // 16) * (self.width // 16)


def _diffusion(name: str) -> ModelFile:
    return ModelFile("diffusion_models", name, _WAN22 + "diffusion_models/" + name)


def _lora(name: str) -> ModelFile:
    return ModelFile("loras", name, _WAN22 + "loras/" + name)


_HIGH = _diffusion("wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors")
_LOW = _diffusion("wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors")

WAN22_T2V = Run(
    title="Wan2.2 text to video, 20 steps",
    experts=(Expert("high noise", _HIGH, 0, 10), Expert("low noise", _LOW, 10, 20)),
    text_encoder=ModelFile(
        "text_encoders",
        "umt5_xxl_fp8_e4m3fn_scaled.safetensors",
        _WAN21 + "text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors",
    ),
    vae=ModelFile("vae", "wan_2.1_vae.safetensors", _WAN22 + "vae/wan_2.1_vae.safetensors"),
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
    experts=(
        Expert("high noise", _HIGH, 0, 2, _lora("wan2.2_t2v_lightx2v_4steps_lora_v1.1_high_noise.safetensors")),
        Expert("low noise", _LOW, 2, 4, _lora("wan2.2_t2v_lightx2v_4steps_lora_v1.1_low_noise.safetensors")),
    ),
    steps=4,
    cfg=1.0,
)

_HUNYUAN = "https://huggingface.co/Comfy-Org/HunyuanVideo_1.5_repackaged/resolve/main/split_files/"


HUNYUAN15_T2V = replace(
    WAN22_T2V,
    title="HunyuanVideo 1.5 text to video, 20 steps",
    experts=(Expert("model", ModelFile("diffusion_models", "hunyuanvideo1.5_720p_t2v_fp16.safetensors"), 0, 20),),
    length=121,
    fps=24,
    cfg=6.0,
    shift=7.0,
)

RUNS = {"wan2.2_t2v": WAN22_T2V, "wan2.2_t2v_4_steps": WAN22_T2V_4_STEPS}


def tiny(run: Run, **changes) -> Run:
    """The same run on the random checkpoints of tools/checkpoints.py: same graph, experts, split and sampler,
    but a clip of 256x256 pixels and 17 frames (1,280 tokens), and the patch accepting calls that short."""

    def stand_in(expert: Expert) -> Expert:
        noise = expert.title.replace(" ", "_")
        model = ModelFile("diffusion_models", f"wan2.2_t2v_{noise}_tiny.safetensors")
        lora = ModelFile("loras", "wan_lora_tiny.safetensors") if expert.lora else None
        return replace(expert, model=model, lora=lora)

    small = replace(
        run,
        title=run.title + ", tiny",
        experts=tuple(stand_in(expert) for expert in run.experts),
        vae=ModelFile("vae", "wan2.1_vae_tiny.safetensors"),
        width=256,
        height=256,
        length=17,
        patch={**run.patch, "min_tokens": 256},
    )
    return replace(small, **changes)
