"""Answers of models by the names of their forms: the end of the prompt, the text, and its content, reasoning and calls."""

from typing import Any

TWO = [("weather", {"place": 'Å, "here"', "days": 2}), ("clock", {})]
JSON = '{"name": "weather", "arguments": {"place": "Å, \\"here\\"", "days": 2}}'
CLOCK = '{"name": "clock", "arguments": {}}'
ANSWERS: dict[str, list[tuple[str, str, str, str, list[Any]]]] = {
    "hermes": [
        ("<|im_start|>assistant\n", f"Well.\n<tool_call>\n{JSON}\n</tool_call>\n<tool_call>\n{CLOCK}\n</tool_call>", "Well.",
         "", TWO),
        ("<|im_start|>assistant\n<think>\n", "I < think\n</think>\n\n3 <4", "3 <4", "I < think", []),
        ("<|im_start|>assistant\n", "<tool_call>\nnot JSON\n</tool_call> and more", "not JSON and more", "", []),
        ("<|im_start|>assistant\n", '<tool_call>\n{"name": "clock"}\n', "", "", [("clock", {})]),
        ("<|start_of_role|>assistant<|end_of_role|>", f"<tool_call>\n{JSON}\n</tool_call>", "", "", TWO[:1]),
    ],
    "qwen-xml": [
        ("<|im_start|>assistant\n<think>\n",
         "so\n</think>\n\nLook:\n\n<tool_call>\n<function=weather>\n<parameter=place>\nÅ, \"here\"\n</parameter>\n"
         "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n"
         "</tool_call>", "Look:", "so", TWO),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "plain\n\ntext", "plain\n\ntext", "", []),
    ],
    "lfm2": [
        ("<|im_start|>assistant\n", '<|tool_call_start|>[weather(place="Å, \\"here\\"", days=2), clock()]<|tool_call_end|>'
         "Wait.", "Wait.", "", TWO),
        ("<|im_start|>assistant\n", "<|tool_call_start|>[__import__('os').system(1)]<|tool_call_end|>",
         "[__import__('os').system(1)]", "", []),
    ],
    "granite": [
        ("<|start_of_role|>assistant<|end_of_role|>", f'<|tool_call|>[{JSON}, {CLOCK}]', "", "", TWO),
    ],
    "harmony": [
        ("<|start|>assistant", "<|channel|>analysis<|message|>I need it<|end|><|start|>assistant<|channel|>commentary "
         'to=functions.weather <|constrain|>json<|message|>{"place": "Å, \\"here\\"", "days": 2}', "", "I need it", TWO[:1]),
        ("<|start|>assistant", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
         "Yes.", "hm", []),
    ],
    "thinking": [("<|im_start|>assistant\n", "<think>\na\n</think>\n\nb <tool_call>", "b <tool_call>", "a", [])],
}  # fmt: skip
