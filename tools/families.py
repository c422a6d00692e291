"""The graph of each model family, as its makers' own workflows have it, with the patch in it."""

from __future__ import annotations

from tools.graph import PATCH, WRAPPER_PATCH, Link, Node, patch_widgets
from tools.settings import Expert, Run

LEFT, WIDE = -480, 420  # the column of prompts, encoders and sizes
ROW = 660  # from one expert to the next: the patch node grows when it shows what a run did


def wan(run: Run) -> dict[str, Node]:
    """Wan: one sampler for each expert."""
    nodes = _common(run, Node("CLIPLoader", _clip(run, "wan"), (LEFT, 420), (WIDE, 130), files=[*run.text_encoders]))
    positive, negative, latent = Link("positive"), Link("negative"), Link("size")
    size = {"width": run.width, "height": run.height, "length": run.length, "batch_size": 1}
    if run.family == "wan5b":
        start = {"start_image": Link("image")} if run.image else {}
        nodes["size"] = _sized("Wan22ImageToVideoLatent", {"vae": Link("vae"), **start, **size})
    elif run.image:
        sockets = {"positive": positive, "negative": negative, "vae": Link("vae"), "start_image": Link("image")}
        nodes["size"] = _sized("WanImageToVideo", {**sockets, **size})
        positive, negative, latent = (Link("size", slot) for slot in range(3))
    else:
        nodes["size"] = _sized("EmptyHunyuanLatentVideo", size)
    for row, expert in enumerate(run.experts):
        model = _shifted(nodes, run, expert, ROW * row)
        latent = _ksampler(nodes, run, row, {"model": model, "positive": positive, "negative": negative}, latent)
    return _to_video(nodes, run, _reported(nodes, latent))


def hunyuan(run: Run) -> dict[str, Node]:
    """HunyuanVideo 1.5: two text encoders, a guider, and a vision encoder where the clip starts from a picture."""
    names = [file.name for file in run.text_encoders]
    clip = {"clip_name1": names[0], "clip_name2": names[1], "type": "hunyuan_video_15", "device": "default"}
    nodes = _common(run, Node("DualCLIPLoader", clip, (LEFT, 420), (WIDE, 130), files=[*run.text_encoders]))
    positive, negative, latent = Link("positive"), Link("negative"), Link("size")
    size = {"width": run.width, "height": run.height, "length": run.length, "batch_size": 1}
    if run.image:
        vision = {"clip_name": run.clip_vision.name}
        nodes["vision"] = Node("CLIPVisionLoader", vision, (LEFT, 1450), (WIDE, 60), files=[run.clip_vision])
        seen = {"clip_vision": Link("vision"), "image": Link("image"), "crop": "center"}
        nodes["seen"] = Node("CLIPVisionEncode", seen, (LEFT, 1560), (WIDE, 80))
        sockets = {"positive": positive, "negative": negative, "vae": Link("vae"), "start_image": Link("image")}
        sockets["clip_vision_output"] = Link("seen")
        nodes["size"] = _sized("HunyuanVideo15ImageToVideo", {**sockets, **size})
        positive, negative, latent = (Link("size", slot) for slot in range(3))
    else:
        nodes["size"] = _sized("EmptyHunyuanVideo15Latent", size)
    model = _shifted(nodes, run, run.experts[0], 0)
    guider = {"model": model, "positive": positive, "negative": negative, "cfg": run.cfg}
    nodes["guider"] = Node("CFGGuider", guider, (1080, 0), (260, 100))
    return _to_video(nodes, run, _reported(nodes, _custom_sampler(nodes, run, model, latent)))


def h3(run: Run) -> dict[str, Node]:
    """MiniMax H3: prompt, pictures and size in one node, no guidance, video and sound from one latent."""
    vae, x = {"vae_name": run.vae.name}, LEFT
    audio = {"vae_name": run.audio_vae.name}
    prompt = {"prompt": run.positive, "width": run.width, "height": run.height, "length": run.length}
    sockets = {"clip": Link("clip"), "vae": Link("vae"), **({"first_frame": Link("image")} if run.image else {})}
    nodes = _switched({
        "clip": Node("CLIPLoader", _clip(run, "minimax"), (x, 420), (WIDE, 130), files=[*run.text_encoders]),
        "vae": Node("VAELoader", vae, (x, 610), (WIDE, 60), "Picture", [run.vae]),
        "audio vae": Node("VAELoader", audio, (x, 720), (WIDE, 60), "Sound", [run.audio_vae]),
        **_picture(run),
        "prompt": Node("MiniMaxH3ImageToVideo", {**sockets, **prompt}, (x, 0), (WIDE, 360), "Prompt, size and length"),
    })  # fmt: skip
    model = _patched(nodes, run, run.experts[0], 0)
    nodes["guider"] = Node("BasicGuider", {"model": model, "conditioning": Link("prompt")}, (1080, 0), (260, 60))
    latent = _reported(nodes, _custom_sampler(nodes, run, model, Link("prompt", 1)))
    sound = {"samples": latent, "vae": Link("audio vae")}
    nodes["sound"] = Node("VAEDecodeAudio", sound, (1520, 110), (240, 60))
    return _to_video(nodes, run, latent, {"audio": Link("sound")})


def longcat(run: Run) -> dict[str, Node]:
    """LongCat-Video through ComfyUI-WanVideoWrapper, whose nodes have types of their own."""
    (expert,), x = run.experts, LEFT
    swap = {"blocks_to_swap": 20, "offload_img_emb": False, "offload_txt_emb": False}
    model = {"model": expert.model.name, "base_precision": "bf16", "quantization": "disabled"}
    model.update(load_device="offload_device", attention_mode="sdpa")
    lora = {"lora": expert.lora.name, "strength": 1.0, "low_mem_load": False, "merge_loras": False}
    clip = {"model_name": run.text_encoders[0].name, "precision": "bf16", "load_device": "offload_device"}
    clip["quantization"] = "disabled"
    prompts = {"positive_prompt": run.positive, "negative_prompt": run.negative, "force_offload": True}
    vae = {"model_name": run.vae.name, "precision": "bf16"}
    size = {"width": run.width, "height": run.height, "num_frames": run.length}
    start = {"extra_latents": Link("encoded")} if run.image else {}
    nodes = _switched({
        "clip": Node("LoadWanVideoT5TextEncoder", clip, (x, 420), (WIDE, 150), files=[*run.text_encoders]),
        "text": Node("WanVideoTextEncode", {"t5": Link("clip"), **prompts}, (x, 0), (WIDE, 360), "Prompt and avoid"),
        "vae": Node("WanVideoVAELoader", vae, (x, 630), (WIDE, 90), files=[run.vae]),
        **_wrapper_picture(run),
        "size": Node("WanVideoEmptyEmbeds", {**start, **size}, (x, 780), (WIDE, 130), "Size and length"),
        "lora": Node("WanVideoLoraSelect", lora, (0, 0), (320, 150), files=[expert.lora]),
        "swap": Node("WanVideoBlockSwap", swap, (0, 210), (320, 120), "Blocks kept in main memory"),
        "unet": Node("WanVideoModelLoader", {"lora": Link("lora"), "block_swap_args": Link("swap"), **model},
                     (0, 390), (320, 220), "Model", [expert.model]),
        "patch": Node(WRAPPER_PATCH, {"model": Link("unet"), **patch_widgets(run)}, (380, 0), (320, 280)),
    })  # fmt: skip
    sampler = {"model": Link("patch"), "image_embeds": Link("size"), "text_embeds": Link("text"), "steps": run.steps}
    sampler.update(cfg=run.cfg, shift=run.shift, seed=run.seed, force_offload=True, scheduler=run.sampler)
    sampler.update(riflex_freq_index=0, denoise_strength=1.0, batched_cfg=False, rope_function="comfy")
    nodes["sampler"] = Node("WanVideoSampler", sampler, (1080, 0), (380, 420))
    decode = {"vae": Link("vae"), "samples": _reported(nodes, Link("sampler")), "enable_vae_tiling": False}
    decode.update(tile_x=272, tile_y=272, tile_stride_x=144, tile_stride_y=128)
    nodes["decode"] = Node("WanVideoDecode", decode, (1520, 0), (300, 220))
    return _saved(nodes, run, {})


BUILDERS = {"wan": wan, "wan5b": wan, "hunyuan": hunyuan, "h3": h3, "longcat": longcat}


def _clip(run: Run, kind: str) -> dict:
    return {"clip_name": run.text_encoders[0].name, "type": kind, "device": "default"}


def _common(run: Run, clip: Node) -> dict[str, Node]:
    """Encoders, prompts and, for a clip that starts from one, the picture."""
    prompt, avoid = ({"text": text, "clip": Link("clip")} for text in (run.positive, run.negative))
    return _switched({
        "clip": clip,
        "vae": Node("VAELoader", {"vae_name": run.vae.name}, (LEFT, 610), (WIDE, 70), files=[run.vae]),
        "positive": Node("CLIPTextEncode", prompt, (LEFT, 0), (WIDE, 170), "Prompt"),
        "negative": Node("CLIPTextEncode", avoid, (LEFT, 230), (WIDE, 130), "Avoid"),
        **_picture(run),
    })  # fmt: skip


def _switched(nodes: dict[str, Node]) -> dict[str, Node]:
    switch = Node("PrimitiveBoolean", {"value": True}, (380, -130), (320, 60), "VC-Attention on or off")
    return {**nodes, "switch": switch}


def _picture(run: Run) -> dict[str, Node]:
    load = Node("LoadImage", {"image": "example.png"}, (LEFT, 1080), (WIDE, 320), "First picture")
    return {"image": load} if run.image else {}


def _wrapper_picture(run: Run) -> dict[str, Node]:
    if not run.image:
        return {}
    fit = {"image": Link("image"), "upscale_method": "lanczos", "width": run.width, "height": run.height}
    tiles = dict(enable_vae_tiling=False, tile_x=272, tile_y=272, tile_stride_x=144, tile_stride_y=128)
    return {
        **_picture(run),
        "fit": Node("ImageScale", {**fit, "crop": "center"}, (LEFT, 1450), (WIDE, 130)),
        "encoded": Node(
            "WanVideoEncode", {"vae": Link("vae"), "image": Link("fit"), **tiles}, (LEFT, 1630), (WIDE, 180)
        ),
    }


def _sized(kind: str, inputs: dict) -> Node:
    return Node(kind, inputs, (LEFT, 740), (WIDE, 170), "Size and length")


def _patched(nodes: dict[str, Node], run: Run, expert: Expert, y: int) -> Link:
    """Append loader -> (LoRA) -> patch of one expert; the patch."""
    unet, patch, title = f"unet {expert.title}", f"patch {expert.title}", expert.title
    titled = {"model": ("Model", "VC-Attention")}.get(title, (f"Model, {title}", f"VC-Attention, {title}"))
    loader = {"unet_name": expert.model.name, "weight_dtype": "default"}
    nodes[unet] = Node("UNETLoader", loader, (0, y), (320, 90), titled[0], [expert.model])
    model = Link(unet)
    if expert.lora:
        lora = {"model": model, "lora_name": expert.lora.name, "strength_model": 1.0}
        model = Link(f"lora {title}")
        nodes[model.node] = Node("LoraLoaderModelOnly", lora, (0, y + 150), (320, 90), "", [expert.lora])
    nodes[patch] = Node(PATCH, {"model": model, **patch_widgets(run)}, (380, y), (320, 280), titled[1])
    return Link(patch)


def _shifted(nodes: dict[str, Node], run: Run, expert: Expert, y: int) -> Link:
    shift = {"model": _patched(nodes, run, expert, y), "shift": run.shift}
    nodes[f"shift {expert.title}"] = Node("ModelSamplingSD3", shift, (760, y), (260, 70))
    return Link(f"shift {expert.title}")


def _ksampler(nodes: dict[str, Node], run: Run, row: int, sockets: dict, latent: Link) -> Link:
    """Append the sampler of one expert, which takes over where the one before it ended."""
    expert, first, last = run.experts[row], row == 0, row == len(run.experts) - 1
    sampler = {
        **sockets,
        "latent_image": latent,
        "add_noise": "enable" if first else "disable",
        "noise_seed": run.seed if first else 0,
        "steps": run.steps,
        "cfg": run.cfg,
        "sampler_name": run.sampler,
        "scheduler": run.scheduler,
        "start_at_step": expert.start,
        "end_at_step": expert.end,
        "return_with_leftover_noise": "disable" if last else "enable",
    }
    title = "Sampler" if first and last else f"Sampler, {expert.title}"
    nodes[f"sampler {expert.title}"] = Node("KSamplerAdvanced", sampler, (1080, ROW * row), (380, 340), title)
    return Link(f"sampler {expert.title}")


def _custom_sampler(nodes: dict[str, Node], run: Run, model: Link, latent: Link) -> Link:
    """Append noise, schedule and sampler behind the guider."""
    schedule = {"model": model, "scheduler": run.scheduler, "steps": run.steps, "denoise": 1.0}
    nodes["noise"] = Node("RandomNoise", {"noise_seed": run.seed}, (1080, 160), (260, 90))
    nodes["kind"] = Node("KSamplerSelect", {"sampler_name": run.sampler}, (1080, 310), (260, 60))
    nodes["sigmas"] = Node("BasicScheduler", schedule, (1080, 430), (260, 110))
    links = {name: Link(key) for name, key in (("noise", "noise"), ("guider", "guider"), ("sampler", "kind"))}
    links |= {"sigmas": Link("sigmas"), "latent_image": latent}
    nodes["sampler"] = Node("SamplerCustomAdvanced", links, (1080, 600), (260, 120), "Sampler")
    return Link("sampler")


def _reported(nodes: dict[str, Node], latent: Link) -> Link:
    """Append the report node, whose latent makes the saved video carry the report."""
    nodes["report"] = Node("VCAttentionReport", {"samples": latent}, (1520, 420), (420, 420))
    return Link("report")


def _to_video(nodes: dict[str, Node], run: Run, latent: Link, more: dict | None = None) -> dict[str, Node]:
    nodes["decode"] = Node("VAEDecode", {"samples": latent, "vae": Link("vae")}, (1520, 0), (240, 60))
    return _saved(nodes, run, more or {})


def _saved(nodes: dict[str, Node], run: Run, more: dict) -> dict[str, Node]:
    nodes["video"] = Node("CreateVideo", {"images": Link("decode"), **more, "fps": run.fps}, (1520, 280), (240, 90))
    save = {"video": Link("video"), "filename_prefix": "video/vc_attention", "format": "auto", "codec": "auto"}
    nodes["save"] = Node("SaveVideo", save, (1980, 0), (420, 420))
    return nodes
