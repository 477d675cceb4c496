"""Small chat templates in the style of each family, written for these tests: with tools, histories and thinking."""

from __future__ import annotations

from engine.text.tools import ToolFormat

HERMES = """\
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {%- if tools %}
        {{- '\\nFunctions you may call, within <tools>:\\n<tools>' }}
        {%- for tool in tools %}{{- '\\n' ~ (tool | tojson) }}{%- endfor %}
        {{- '\\n</tools>\\nCall as <tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
        {{- m.content }}
        {%- for call in m.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

LLAMA3 = """\
{%- if tools %}
    {{- '<|start|>system\\nAnswer with {"name": function name, "parameters": {argument: value}} to call one of:' }}
    {%- for tool in tools %}{{- '\\n' ~ (tool | tojson(indent=4)) }}{%- endfor %}{{- '<|end|>' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set f = m.tool_calls[0].function %}
        {{- '<|start|>assistant\\n{"name": "' + f.name + '", "parameters": ' + (f.arguments | tojson) + '}<|end|>' }}
    {%- elif m.role == 'tool' %}{{- '<|start|>ipython\\n' + m.content + '<|end|>' }}
    {%- else %}{{- '<|start|>' + m.role + '\\n' + m.content | trim + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant\\n' }}{%- endif %}"""

_MISTRAL = """\
{%- if tools %}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{- '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' }}
    {%- elif m.role == 'user' %}{{- '[INST] ' + m.content + '[/INST]' }}
    {%- elif m.role == 'tool' %}{{- '[TOOL_RESULTS] ' + m.content + '[/TOOL_RESULTS]' }}
    {%- elif m.tool_calls %}@CALLS@
    {%- else %}{{- ' ' + m.content + '<|im_end|>' }}
    {%- endif %}
{%- endfor %}"""
MISTRAL = _MISTRAL.replace(
    "@CALLS@",
    """{{- '[TOOL_CALLS] [' }}
        {%- for call in m.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}
            {{- ', ' if not loop.last else ']<|im_end|>' }}
        {%- endfor %}""",
)
MISTRAL_ARGS = _MISTRAL.replace(
    "@CALLS@",
    """{%- for call in m.tool_calls %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + (call.function.arguments | tojson) }}
        {%- endfor %}{{- '<|im_end|>' }}""",
)

_DEEPSEEK = """\
{%- for m in messages %}{%- if m.role == 'system' %}{{- m.content }}{%- endif %}{%- endfor %}
{%- if tools %}{{- '\\n## Tools\\n' + (tools | tojson) }}{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{{- '<|im_start|>User: ' + m.content + '\\nAssistant: ' }}
    {%- elif m.role == 'assistant' %}
        {{- m.content.split('</think>')[-1] }}
        {%- if m.tool_calls %}
            {{- '<｜tool▁calls▁begin｜>' }}
            {%- for call in m.tool_calls %}
                {%- set f = call.function %}@CALL@
            {%- endfor %}
            {{- '<｜tool▁calls▁end｜>' }}
        {%- endif %}
        {{- '<|im_end|>' }}
    {%- elif m.role == 'tool' %}{{- '\\nResult: ' + m.content + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and thinking %}{{- '<think>\\n' }}{%- endif %}"""
DEEPSEEK = _DEEPSEEK.replace(
    "@CALL@",
    """{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + f.name + '\\n```json\\n' + (f.arguments | tojson) }}
                {{- '\\n```<｜tool▁call▁end｜>' + ('' if loop.last else '\\n') }}""",
)
DEEPSEEK_V31 = _DEEPSEEK.replace(
    "@CALL@",
    """{{- '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + (f.arguments | tojson) + '<｜tool▁call▁end｜>' }}""",
)

GLM = """\
{%- if tools %}
    {{- '<|start|>system\\n# Tools' }}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\nFor each call: <tool_call>{function-name}\\n<arg_key>{key}</arg_key>\\n<arg_value>{value}</arg_value>\\n' }}
    {{- '</tool_call>' }}
{%- endif %}
{%- for m in messages %}
    {{- '<|start|>' + m.role + '\\n' }}
    {%- if m.reasoning_content %}{{- '<think>' + m.reasoning_content + '</think>\\n' }}{%- endif %}
    {{- m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '\\n<tool_call>' + call.function.name + '\\n' }}
        {%- for key, value in call.function.arguments.items() %}
            {{- '<arg_key>' + key + '</arg_key>\\n<arg_value>' }}
            {{- value if value is string else value | tojson }}{{- '</arg_value>\\n' }}
        {%- endfor %}
        {{- '</tool_call>' }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant\\n' }}{%- endif %}"""

QWEN3_CODER = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools' }}{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n<tool_call>\\n<function=name>\\n<parameter=key>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>' }}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' + m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for key, value in call.function.arguments.items() %}
            {{- '<parameter=' + key + '>\\n' }}{{- value if value is string else value | tojson }}
            {{- '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

HARMONY = """\
{{- '<|start|>system<|message|>Valid channels: analysis, commentary, final.<|end|>' }}
{%- if tools %}
    {{- '<|start|>developer<|message|># Tools\\n' }}
    {%- for tool in tools %}{{- (tool.function | tojson) + '\\n' }}{%- endfor %}{{- '<|end|>' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'assistant' and m.tool_calls %}
        {%- if m.reasoning_content %}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + m.reasoning_content + '<|end|>' }}
        {%- endif %}
        {%- set f = m.tool_calls[0].function %}
        {{- '<|start|>assistant<|channel|>commentary to=functions.' + f.name + ' <|constrain|>json<|message|>' }}
        {{- (f.arguments | tojson) + '<|call|>' }}
    {%- elif m.role == 'assistant' %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|start|>functions.x to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}
    {%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""

GEMMA = """\
{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
    {{- '<|start|>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>model\\n' }}{%- endif %}"""

WITH_TOOLS: dict[ToolFormat, str] = {
    ToolFormat.HERMES: HERMES,
    ToolFormat.LLAMA3_JSON: LLAMA3,
    ToolFormat.MISTRAL: MISTRAL,
    ToolFormat.MISTRAL_ARGS: MISTRAL_ARGS,
    ToolFormat.DEEPSEEK: DEEPSEEK,
    ToolFormat.DEEPSEEK_V31: DEEPSEEK_V31,
    ToolFormat.GLM: GLM,
    ToolFormat.QWEN3_CODER: QWEN3_CODER,
    ToolFormat.HARMONY: HARMONY,
}
