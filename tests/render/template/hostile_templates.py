"""Templates that attack CPU, memory or the sandbox, by name. Data of test_template_hostile.py; nothing runs here."""

# ruff: noqa: E501 - a template stands on one line

from __future__ import annotations

# What must come of each: a coded refusal, or output that gives nothing away.
BOMBS = {
    "range_billion": "{% for i in range(10**9) %}{% endfor %}",
    "nested_range": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested_filtered_range": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "range_lists": "{% for i in range(99999) %}{% set x = range(99999)|list %}{% endfor %}",
    "range_sum": "{% for i in range(99999) %}{% set x = range(99999)|sum %}{% endfor %}",
    "string_times": "{{ ('a' * 10**10)|length }}",
    "field_times": "{% set n = 10**10 %}{{ (messages[0].content * n)|length }}",
    "list_times": "{{ ([0] * 10**9)|length }}",
    "tuple_times": "{{ ((0, 1) * 10**9)|length }}",
    "power": "{{ (10**10**8) is number }}",
    "power_of_variable": "{% set n = 10**8 %}{{ (10**n) is number }}",
    "big_product": "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
    "double_concat": (
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}"
    ),
    "double_plus": (
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}"
    ),
    "double_field": (
        "{% set ns = namespace(s=messages[0].content) %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"
    ),
    "double_list": "{% set ns = namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "double_join": (
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}"
    ),
    "double_format": (
        "{% set ns = namespace(s='a') %}{% for i in range(40) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}"
    ),
    "double_set_block": (
        "{% set ns = namespace(s='aa') %}{% for i in range(40) %}{% set b %}{{ ns.s }}{{ ns.s }}{% endset %}"
        "{% set ns.s = b %}{% endfor %}"
    ),
    "double_output": (
        "{% set ns = namespace(s='a') %}{% for i in range(23) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
        "{% for i in range(99999) %}{{ ns.s }}{% endfor %}"
    ),
    "double_nested_list": (
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}"
    ),
    "double_nested_json": (
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson }}"
    ),
    "center_filter": "{{ 'x'|center(10**10)|length }}",
    "center_method": "{{ 'x'.center(10**10)|length }}",
    "ljust_field": "{{ messages[0].content.ljust(10**10)|length }}",
    "rjust_literal": "{{ 'x'.rjust(10**10)|length }}",
    "zfill": "{{ messages[0].content.zfill(10**10)|length }}",
    "expandtabs": "{{ 'a\\tb'.expandtabs(10**9)|length }}",
    "printf_width": "{{ ('%9999999999d' % 1)|length }}",
    "printf_precision": "{{ ('%.999999999f' % 1.0)|length }}",
    "printf_star": "{{ ('%*d' % (10**9, 1))|length }}",
    "printf_mapping": "{{ ('%(a)999999999d' % {'a': 1})|length }}",
    "format_filter": "{{ '%2000000000d'|format(1)|length }}",
    "str_format": "{{ '{:>2000000000}'.format(1)|length }}",
    "str_format_nested": "{{ '{:>{w}}'.format(1, w=10**9)|length }}",
    "indent": "{{ 'a\nb'|indent(2*10**9)|length }}",
    "replace": "{% set b = 'a' * 99999 %}{{ b.replace('a', b)|length }}",
    "replace_filter": "{% set b = 'a' * 99999 %}{{ b|replace('a', b)|length }}",
    "join_bomb": "{% set b = 'a' * 9999999 %}{{ b.join(b)|length }}",
    "batch": "{{ [1]|batch(10**10, 0)|list|length }}",
    "slice": "{{ [1]|slice(10**9)|list|length }}",
    "wordwrap": "{{ ('a ' * 999999)|wordwrap(1)|length }}",
    "lipsum": "{{ lipsum(n=10**6)|length }}",
    "tojson_indent": "{{ {'a': 1}|tojson(indent=2*10**9)|length }}",
    "round_precision": "{{ 1.5|round(10**9) }}",
    "recursive_macro": "{% macro f(n) %}{{ f(n+1) }}{% endmacro %}{{ f(0) }}",
    "exponential_macro": ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"),
    "recursive_loop": "{% set x = [1] %}{% for a in [x] recursive %}{{ loop([x]) }}{% endfor %}",
    "deep_parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "deep_lists": "{{ " + "[" * 3000 + "1" + "]" * 3000 + " }}",
    "deep_if": "{% if 1 %}" * 300 + "{% endif %}" * 300,
    "deep_for": "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    "long_plus": "{{ " + "+".join(["messages[0].content"] * 20000) + " }}",
    "long_times": "{{ " + "*".join(["2"] * 20000) + " }}",
    "long_filter": "{{ messages[0].content" + "|trim" * 5000 + " }}",
    "long_not": "{{ " + "not " * 5000 + "1 }}",
    "long_source": "x" * (1 << 21),
    "huge_number": "{{ " + "9" * 100_000 + " }}",
    "folding_slice": "{{ [1]|slice(10**9)|list }}",
    "folding_autoescape": "{% autoescape [1]|slice(10**9)|list %}{% endautoescape %}",
    "folding_condition": "{% if [1]|slice(10**9)|list %}a{% endif %}",
    "folding_center": "{{ 'x'|center(999999999)|length if 'x'|center(999999999) else 1 }}",
    "strftime_width": "{{ strftime_now('%' + '9'*9 + 'Y')|length }}",
    "strftime_long": "{{ strftime_now('%c' * 9999999)|length }}",
    "map_chain": "{{ range(99999)" + "|map('string')" * 3000 + "|list|length }}",
    "split_pieces": "{% for i in range(99999) %}{% set x = ('a ' * 99999).split() %}{% endfor %}",
    "sort_again": "{% set x = range(99999)|list %}{% for i in range(99999) %}{% set y = x|sort %}{% endfor %}",
    "slice_again": "{% set x = range(99999)|list %}{% for i in range(99999) %}{% set y = x[:] %}{% endfor %}",
    "search_again": "{% set x = 'a' * 9999999 %}{% for i in range(99999) %}{% set y = 'b' in x %}{% endfor %}",
    "compare_again": "{% set x = range(99999)|list %}{% set y = range(99999)|list %}"
    "{% for i in range(99999) %}{% if x == y %}{% endif %}{% endfor %}",
    "upper_again": "{% set x = 'a' * 9999999 %}{% for i in range(99999) %}{% set y = x|upper %}{% endfor %}",
    "cycle_items": "{% set c = cycler(*range(99999)) %}{% for i in range(99999) %}{% set y = cycler(*range(99999)) %}{% endfor %}",
}

# Walks out of the sandbox: refused, or printing nothing of Python's insides.
ESCAPES = {
    "class": "{{ messages[0].content.__class__.__mro__ }}",
    "class_item": "{{ messages[0].content['__class__']['__mro__'] }}",
    "attr_filter": "{{ (messages[0].content|attr('__class__'))|attr('__mro__') }}",
    "format_class": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "format_item": "{{ '{0.__class__.__mro__}'['format'](messages) }}",
    "format_map": "{{ '{a.__class__.__mro__}'.format_map({'a': messages}) }}",
    "format_attr": "{{ ('{0.__class__.__mro__}'|attr('format'))(messages) }}",
    "format_globals": "{{ '{0.__init__.__globals__}'.format(cycler) }}",
    "format_globals_attr": "{{ ('{0.__init__.__globals__}'|attr('format'))(cycler) }}",
    "format_builtins": "{{ '{0.__init__.__globals__[__builtins__]}'.format(joiner) }}",
    "format_of_field": "{{ messages[1].content.format(messages) }}",
    "format_of_safe": "{{ ('{0.__init__.__globals__}'|safe).format(cycler) }}",
    "format_map_mapped": "{{ ['{0.__init__.__globals__}']|map(attribute='format')|first }}",
    "format_called_by_map": "{% set f = (['{0.__init__.__globals__}']|map(attribute='format')|first) %}{{ f(cycler) }}",
    "cycler_globals": "{{ cycler.__init__.__globals__ }}",
    "raise_globals": "{{ raise_exception.__globals__ }}",
    "strftime_closure": "{{ strftime_now.__closure__ }}",
    "namespace_init": "{{ namespace.__init__ }}",
    "dict_subclasses": "{{ dict.__class__.__subclasses__() }}",
    "lipsum_globals": "{{ lipsum.__globals__['os'] }}",
    "self_reference": "{{ self.__init__.__globals__ }}",
    "self_context": "{{ self._TemplateReference__context }}",
    "context_walk": "{{ caller.__func__ }}{{ loop.__class__ }}",
    "progress": "{{ self.progress }}{{ context.progress }}",
    "provenance_slots": "{{ messages[0]._tag }}{{ messages[0].content._runs }}{{ messages._tag }}{{ messages[0]._message }}",
    "provenance_items": "{{ messages[0]['_tag'] }}{{ messages[0].content['_runs'] }}",
    "runs_append": "{% set q = messages[0].content._runs.append(1) %}",
    "mutate_update": "{% set q = messages[0].update({'a': 1}) %}{{ messages }}",
    "mutate_append": "{% set q = messages.append(1) %}{{ messages }}",
    "mutate_item": "{% set q = messages[0].pop('content') %}",
    "namespace_underscore": "{% set ns = namespace(_x=1) %}",
    "namespace_dunder": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "extends": "{% extends 'x' %}",
    "generator_frame": "{{ ([1]|map('string')).gi_frame }}",
    "macro_code": "{% macro f() %}{% endmacro %}{{ f._func.__code__ }}",
    "sort_attribute": "{{ messages|sort(attribute='__class__')|length }}",
    "sum_attribute": "{{ [cycler]|sum(attribute='__init__.__globals__', start={}) }}",
    "groupby_attribute": "{{ [cycler]|groupby('__init__.__globals__') }}",
    "map_attribute": "{{ [cycler]|map(attribute='__init__.__globals__')|list }}",
    "select_attr": "{{ [cycler]|selectattr('__init__.__globals__')|list }}",
    "environment_name": "{{ environment }}{{ context }}{{ __builtins__ }}",
}
