"""One peer measured in its own process and perhaps its own Python: `python peer_process.py PEER FILE THREADS`.

Imports nothing of Bayard, so that any interpreter that has the peer can run it. Prints one JSON line: prefill of 512
tokens and 64 decode steps after them, the best of three (transformers: of two, over 16 steps), so that a noisy machine
is measured at its quietest.
"""

import inspect
import json
import os
import resource
import sys
import time

PROMPT = [100 + i * 37 % 40000 for i in range(512)]
STEPS = 64


def llamacpp(path: str, threads: int) -> tuple[str, float, float]:
    import llama_cpp  # type: ignore[import-not-found,unused-ignore]

    model = llama_cpp.Llama(path, n_ctx=2048, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)
    prefill_s = decode_s = float("inf")
    for _ in range(3):
        model.reset()
        begun = time.perf_counter()
        model.eval(PROMPT)
        prefill_s = min(prefill_s, time.perf_counter() - begun)
        begun = time.perf_counter()
        for step in range(STEPS):
            model.eval([100 + step])
        decode_s = min(decode_s, time.perf_counter() - begun)
    return f"llama.cpp (llama-cpp-python {llama_cpp.__version__})", prefill_s, decode_s


def transformers(path: str, threads: int) -> tuple[str, float, float]:
    import torch
    import transformers as library

    library.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    folder, file = os.path.split(os.path.abspath(path))
    model = library.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    prefill_s = decode_s = float("inf")
    steps = STEPS // 4
    names = inspect.signature(model.forward).parameters
    keyword = "cache" if "cache" in names else "past_key_values"  # renamed between releases
    with torch.inference_mode():
        for _ in range(2):
            begun = time.perf_counter()
            output = model(torch.tensor([PROMPT]), use_cache=True)
            prefill_s = min(prefill_s, time.perf_counter() - begun)
            begun = time.perf_counter()
            for step in range(steps):
                output = model(torch.tensor([[100 + step]]), use_cache=True, **{keyword: output.past_key_values})
            decode_s = min(decode_s, (time.perf_counter() - begun) * STEPS / steps)
    return f"transformers {library.__version__} fp32", prefill_s, decode_s


PEERS = {"llamacpp": llamacpp, "transformers": transformers}


def main(peer: str, path: str, threads: str) -> None:
    name, prefill_s, decode_s = PEERS[peer](path, int(threads))
    line = {
        "peer": name,
        "threads": int(threads),
        "prefill_tok_s": round(len(PROMPT) / prefill_s, 1),
        "decode_tok_s": round(STEPS / decode_s, 2),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
