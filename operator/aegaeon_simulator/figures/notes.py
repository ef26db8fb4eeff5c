"""The page's notes on the numbers: why a claim is missed, and the limits of the runs."""

from __future__ import annotations

WHY = {
    "fig11a_sllm_implied": "the curve is that of the artifact's ServerlessLLM on other constants; on its own see below",
    "fig13_slo05_sllm": "loads three times as fast as the artifact's help the baseline more than the policy",
    "fig13_slo03_sllm": "loads three times as fast as the artifact's help the baseline more than the policy",
    "fig11a_ratio": "both crossings move with the device: loads at 51.2 GB/s here, 16 GB/s in the artifact",
    "fig11a_sllmp": "on these constants the baselines cross elsewhere; the artifact's own traces are below",
    "fig11b_ratio": "loads three times as fast as the artifact's help the baseline more than the policy",
    "fig11c_ratio": "loads three times as fast as the artifact's help the baseline more than the policy",
    "fig12_ox2": "ServerlessLLM is below 90 % at the smallest load already (0.5 req/s): long answers hold its GPUs",
    "fig13_slo02": "switches are cheaper here than in the paper's measurements",
    "fig14": "measured bars are only in the paper's figure",
    "fig15_half": "engines here keep weights until their room is needed, so several models stay resident",
    "fig15_max": "a switch also waits for KV and for a load that another model began",
    "fig17_a10": "all three cross below the smallest load that was run; one model fits an A10, so nothing overlaps",
    "fig17_tp4": "few requests, so the order between neighbours is within noise",
}

NOTES = (
    "The published headline (twice ServerlessLLM) is against a baseline that binds a request to a device on arrival. "
    "`serverlessllm-fair`, one queue for all, is much stronger; it is in every figure.",
    "`paper-artifact` and the ServerlessLLM baselines have no cost of control; nor has the simulated link any failure.",
    "`prism` is the scheduler's own core with that policy (policy-prism.md); `prewarm` and `vllm-sleep` are "
    "`serverlessllm-fair` that loads ahead, or changes models with their KV dropped (design/simulator.md).",
    "`paper` is run as it was published: turns of 4 s at most, six GPUs that prefill and ten that decode. That fits "
    "links of 16 GB/s; on these it carries far more with shorter turns and another split: policy-measured.md has it, "
    "and every baseline at its best setting, where objectives, tenants or moments differ.",
    "The *time* form starts its clock anew at a token that is late and keeps the allowance gained until then. So it "
    "hardly tells how slow a stream is: 250 tokens at half the speed of their objective from the first one on (TTFT 2 "
    "s, TBT 20 ms) are 30 % of tokens and 99.6 % of time, at an eighth of it 4 and 98 %. What it charges is one long "
    "wait: a request that waits for 8 s and then runs in pace has 33 %. Where there is more work than engines can do, "
    "a policy that slows all down evenly (`prism`, `vllm-sleep`) has nearly all of the time and few tokens; one that "
    "keeps most requests in pace lets the others wait. `slack` does the latter, so it is behind in *time* under "
    "overload. To start its deadlines anew at each late token, as this form does, was tried: at 80 models x 0.2 "
    "(seeds 0 and 1) it lost 9 points of tokens and gained no time, since a step for who is late is one that a "
    "request in time does not get.",
    "Figure 14: a gap between tokens up to the request's median gap counts as decoding, the rest as waiting; control "
    "and KV copies are part of waiting and are not distinguished, as the paper does.",
    "Figure 15: waits of switches are not distinguished by size of the model; the KV copies of single requests (the "
    "right half of the paper's figure) are not recorded. Figure 16 (fragmentation) is not drawn.",
    "Figure 17, left: an A10 has no room for a second model, so nothing is prefetched, as in the paper; nor do two 72B "
    "models fit side by side on the right, by 1 %. `paper-artifact` is held to that too. Right: every "
    "constant of the 72B model is derived; two devices of four GPUs each.",
    "`prod47` is run with the paper's mix of 7B to 13B: its 72B models fit no single device. Real-shaped traces are "
    "run for 0.3 of the duration, lengths capped at 4000 and 2000 tokens; `mooncake` and `azure` are one hot model. "
    "`arena27` is run on four GPUs: on 16, `slack`, `paper` and `serverlessllm-fair` have all of it on time even 36 "
    "times as fast as recorded.",
    "A curve ends at the first load where all three forms are below 90 % (baselines: 75 %), so `<` and `>` say no more "
    "than they say.",
)
