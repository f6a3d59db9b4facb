// SPDX-License-Identifier: Apache-2.0
// The template language, case by case: what Python's jinja2 gives for the same text.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "text/chat_template.h"

namespace kvik::text {
namespace {

constexpr char kContext[] = R"({
  "s": "  Hello, Wörld ", "n": 5, "f": 2.5, "yes": true, "nothing": null,
  "xs": [3, 1, 2], "d": {"b": 1, "a": [1, 2.0, null], "C": {"x": "y"}},
  "ms": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "B"},
         {"role": "user", "content": "c"}],
  "tree": [{"n": 1, "c": [{"n": 2}, {"n": 3, "c": [{"n": 4}]}]}],
  "u": "日本語🎉x"
})";
// 2026-01-02 03:04:05 UTC.
constexpr int64_t kNow = 1'767'323'045;

Result<std::string> Render(std::string_view source, const JinjaLimits& limits = {}) {
  KVIK_ASSIGN(const ChatTemplate parsed, ChatTemplate::Parse(source, limits));
  KVIK_ASSIGN(const JinjaValue context, JinjaValue::FromJson(kContext));
  return parsed.RenderContext(context, kNow);
}

// `text` and then `unit` many times.
std::string Repeat(std::string text, std::string_view unit, int times) {
  for (int i = 0; i < times; ++i) text += unit;
  return text;
}

struct Case {
  std::string_view source;
  std::string_view text;
};

void ExpectAll(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Result<std::string> got = Render(c.source);
    if (got) {
      EXPECT_EQ(*got, c.text) << c.source;
    } else {
      ADD_FAILURE() << c.source << ": " << got.error().message;
    }
  }
}

void ExpectErrors(const std::vector<std::string_view>& sources) {
  for (const std::string_view source : sources) {
    const Result<std::string> got = Render(source);
    EXPECT_FALSE(got) << source << " gives " << (got ? *got : "");
    if (got) continue;
    EXPECT_EQ(got.error().message.find('\n'), std::string::npos) << got.error().message;
    EXPECT_TRUE(got.error().message.starts_with("chat template: line ")) << got.error().message;
  }
}

TEST(Jinja, WhiteSpaceControl) {
  ExpectAll({
      {"a\n", "a"},
      {"a\n\n", "a\n"},
      {"a\r\nb\rc", "a\nb\nc"},
      {"{% if yes %}\nb\n{% endif %}\nc", "b\nc"},
      {"  {% if yes %}\n  b\n  {% endif %}\nc", "  b\nc"},
      {"a  {% if yes %}b{% endif %}", "a  b"},
      {"a\n  {%- if yes -%}  \n b{% endif %}", "ab"},
      {"a\n  {%+ if yes %}b{% endif +%}\nc", "a\n  b\nc"},
      {"a \n {{- n -}} \n b", "a5b"},
      {"  {{ n }}\n", "  5"},
      {"a {#- c -#} b{# c #}\nc\n  {# d #}\ne", "abc\ne"},
      {"{% raw %}\n{{ x }}{% if %}\n{% endraw %}\nb", "\n{{ x }}{% if %}\nb"},
      {"a {%- raw -%} {{ }} {%- endraw -%} b", "a{{ }}b"},
      {"{ { } {x}", "{ { } {x}"},
      {"{#", ""},
  });
}

TEST(Jinja, Literals) {
  ExpectAll({
      {R"({{ 'a' "b" }}{{ 'it\'s' }}{{ '\x41\u00e9\n\101\d' }})", "abit'sA\u00e9\nA\\d"},
      {R"({{ '\ud83c\udf89' }})", "\U0001F389"},
      {"{{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 2.50 }}",
       "31 3 15 1000 1000.0 2.5"},
      {"{{ true }}{{ False }}{{ none }}", "TrueFalseNone"},
      {"{{ [1, [2, 'a'],] }}{{ (1,) }}{{ () }}{{ {'a': 1, 2: (3, 4)} }}",
       "[1, [2, 'a']](1,)(){'a': 1, 2: (3, 4)}"},
      {"{{ {1: 'a', 1.0: 'b', true: 'c'} }}", "{1: 'c'}"},
      {R"({{ ["it's", 'say "x"', 'both \' "', '\n\t\x00é\u200b'] }})",
       R"(["it's", 'say "x"', 'both \' "', '\n\t\x00é\u200b'])"},
  });
}

TEST(Jinja, NumbersPrintLikePython) {
  ExpectAll({
      {"{{ 1e15 }} {{ 1e16 }} {{ 0.0001 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ -0.0 }}",
       "1000000000000000.0 1e+16 0.0001 1e-05 0.30000000000000004 -0.0"},
      {"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 % -2 }} {{ -7.5 // 2 }}",
       "3 -4 2 -2 -0.5 -4.0"},
      {"{{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }}",
       "3.5 2.0 1024 0.5 4 64"},
      {"{{ 1e308 * 10 }} {{ true + true }} {{ 1 == 1.0 }} {{ 1 == '1' }}", "inf 2 True False"},
      {"{{ 42.55|round(1) }} {{ 2.5|round }} {{ 3.7|int }} {{ '0x1f'|int(0, 16) }} {{ 'x'|int(7) "
       "}}",
       "42.5 2.0 3 31 7"},
      {"{{ '1e3'|float }} {{ ' 12 '|int }} {{ -3|abs }} {{ 42.55|round(1, 'floor') }}",
       "1000.0 12 3 42.5"},
  });
  ExpectErrors({"{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1.0 % 0 }}", "{{ 9223372036854775807 + 1 }}",
                "{{ 2 ** 64 }}", "{{ 99999999999999999999 }}", "{{ (-8) ** 0.5 }}"});
}

TEST(Jinja, Operators) {
  ExpectAll({
      {"{{ 'a' ~ 1 ~ none ~ 2.0 }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }}",
       "a1None2.0 abab [1, 2] (1, 2)"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 2 in xs }} {{ 'k' in {'k': 1} }} {{ 'b' not in 'abc' }}",
       "True False True True False"},
      {"{{ [1, 2] < [1, 3] }} {{ 'B' < 'a' }} {{ [1] == (1,) }} {{ {'a': 1} == {'a': 1.0} }}",
       "True True False True"},
      {"{{ 0 or 'z' }}{{ 1 and 'y' }}{{ not 0 }}{{ 'a' if n > 3 else 'b' }}{{ 'a' if n > 9 }}",
       "zyTruea"},
      {"{{ 'a' if n > 9 else 'b' if n > 8 else 'c' }}", "c"},
  });
  ExpectErrors({"{{ 'a' + 1 }}", "{{ none + 1 }}", "{{ 1 < 'a' }}", "{{ {} < {} }}", "{{ -'a' }}",
                "{{ 1 in 'a' }}", "{{ 1 in 5 }}", "{{ [] in d }}", "{{ {[1]: 2} }}",
                "{{ [1] + (2,) }}"});
}

TEST(Jinja, ItemsSlicesAndAttributes) {
  ExpectAll({
      {"{{ u[2] }}{{ u[-1] }}{{ u[1:3] }}{{ u[::-1] }}{{ u|length }}", "語x本語x🎉語本日5"},
      {"{{ xs[1:] }}{{ xs[::2] }}{{ xs[:-1] }}{{ xs[5:] }}{{ xs[::-1] }}{{ xs.0 }}{{ xs[true] }}",
       "[1, 2][3, 2][3, 1][][2, 1, 3]31"},
      {"{{ d.C.x }}{{ d['C']['x'] }}{{ d.nope }}{{ d['nope'] }}{{ xs[9] }}{{ nothing.x }}", "yy"},
      {"{{ {'items': 1}['items'] }}{{ {'get': 1}.get('get') }}", "11"},
      {"{{ 'a'.__class__ }}{{ xs.append }}{{ d.update }}", ""},
      {"{{ range(5)[1:4] }}{{ range(3)|list }}{{ 2 in range(3) }}", "range(1, 4)[0, 1, 2]True"},
  });
  ExpectErrors({"{{ undefined.x }}", "{{ undefined['x'] }}", "{{ d.nope.x }}", "{{ xs[::0] }}",
                "{{ xs.append(1) }}", "{{ d.update({}) }}", "{{ n[1:] }}", "{{ range(100001) }}"});
}

TEST(Jinja, UndefinedPrintsAndIteratesButNothingElse) {
  ExpectAll({
      {"{{ q }}|{{ q|default('d') }}|{{ q is defined }}|{{ q ~ 'a' }}|{{ q == none }}",
       "|d|False|a|False"},
      {"{% for x in q %}{% else %}empty{% endfor %}{{ q|length }}{{ [q] }}", "empty0[Undefined]"},
      {"{% if q %}a{% else %}b{% endif %}{{ q or 'c' }}", "bc"},
  });
  ExpectErrors({"{{ q + 1 }}", "{{ q < 1 }}", "{{ q() }}", "{{ q.a is defined }}", "{{ q[1:] }}",
                "{{ -q }}", "{{ q|int }}", "{{ q|tojson }}"});
}

TEST(Jinja, Methods) {
  ExpectAll({
      {"{{ s.strip() }}|{{ s.lstrip() }}|{{ s.strip().split(', ') }}",
       "Hello, Wörld|Hello, Wörld |['Hello', 'Wörld']"},
      {"{{ 'a<x>b<x>c'.split('<x>')[-1] }}{{ 'a b  c '.split() }}{{ 'a b c '.split(none, 1) }}",
       "c['a', 'b', 'c']['a', 'b c ']"},
      {"{{ 'a.b.c'.rsplit('.', 1) }}{{ 'a-b'.partition('-') }}{{ 'a\nb\r\nc'.splitlines() }}",
       "['a.b', 'c']('a', '-', 'b')['a', 'b', 'c']"},
      {"{{ 'abab'.replace('a', 'x', 1) }}{{ 'abc'.find('c') }}{{ 'é🎉x'.find('x') }}{{ "
       "'aa'.count('a') }}",
       "xbab222"},
      {"{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('b', 0, 2) }}{{ 'aB'.swapcase() }}",
       "TrueTrueAb"},
      {"{{ 'straße'.upper() }}{{ 'ΑΣ'.lower() }}{{ \"they're\".title() }}{{ 'ﬁ'.capitalize() }}",
       "STRASSEαςThey'ReFi"},
      {"{{ '-'.join(['a', 'b']) }}{{ 'ab'.center(7, '*') }}{{ '-7'.zfill(4) }}{{ 'x'.ljust(3) }}|",
       "a-b***ab**-007x  |"},
      {"{{ 'abc'.removeprefix('a') }}{{ '12'.isdigit() }}{{ 'aB1'.isalnum() }}{{ 'Ab Cd'.istitle() "
       "}}",
       "bcTrueTrueTrue"},
      {"{{ d.items() }}{{ d.keys()|list }}{{ d.get('q', 7) }}{{ d.get('b') }}{{ xs.index(1) }}{{ "
       "xs.count(2) }}",
       "dict_items([('b', 1), ('a', [1, 2.0, None]), ('C', {'x': 'y'})])['b', 'a', 'C']7111"},
  });
  ExpectErrors({"{{ 'a'.split('') }}", "{{ 'a'.index('b') }}", "{{ ','.join([1]) }}",
                "{{ 'a'.nope() }}", "{{ 'a'.upper(1) }}", "{{ xs.index(9) }}", "{{ d.get() }}",
                "{{ 'a'.center(9, 'xy') }}"});
}

TEST(Jinja, Formatting) {
  ExpectAll({
      {"{{ '%s-%05.1f-%-4d|%x %% %r' % ('a', 2.25, 7, 255, 'q') }}", "a-002.2-7   |ff % 'q'"},
      {"{{ '%(a)s %(b)d' % {'a': 1, 'b': 2} }}{{ '%s' % [1] }}{{ '%s!'|format('x') }}", "1 2[1]x!"},
      {"{{ '{} {1}'.format(1) if false else '{0}{1}{0}'.format('a', 'b') }}", "aba"},
      {"{{ '{:>4}|{:<4}|{:^5}|{:*^5}|{:05d}|{:,}'.format('a', 'b', 'c', 'd', 42, 1234567) }}",
       "   a|b   |  c  |**d**|00042|1,234,567"},
      {"{{ '{:.2f} {:.3} {:%} {:e} {!r} {{}}'.format(3.14159, 3.0, 0.25, 1234.5, 'a') }}",
       "3.14 3.0 25.000000% 1.234500e+03 'a' {}"},
      {"{{ '{a[x]} {b.role}'.format(a={'x': 1}, b=ms[0]) }}{{ '{:{}}|'.format('a', 3) }}",
       "1 usera  |"},
      {"{{ strftime_now('%d %b %Y %H:%M:%S') }}", "02 Jan 2026 03:04:05"},
  });
  ExpectErrors({"{{ '%d' % 'a' }}", "{{ '%s %s' % (1,) }}", "{{ 'x' % 1 }}", "{{ '{}'.format() }}",
                "{{ '{:d}'.format('a') }}", "{{ '}'.format() }}", "{{ '%' % 1 }}",
                "{{ '{a}'.format() }}"});
}

TEST(Jinja, Json) {
  ExpectAll({
      {"{{ d|tojson }}", R"({"b": 1, "a": [1, 2.0, null], "C": {"x": "y"}})"},
      {"{{ {'b': 1, 'a': []}|tojson(sort_keys=true) }}", R"({"a": [], "b": 1})"},
      {"{{ [1, {'a': {}}]|tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": {}\n  }\n]"},
      {"{{ [1, 2]|tojson(separators=(',', ':')) }}{{ [1]|tojson(indent='\t') }}", "[1,2][\n\t1\n]"},
      {R"({{ '<é&\'"\\\n\x01🎉' | tojson }})", R"("<é&'\"\\\n\u0001🎉")"},
      {"{{ 'é🎉'|tojson(ensure_ascii=true) }}", R"("\u00e9\ud83c\udf89")"},
      {"{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}", R"({"1": 4, "null": 3, "1.5": 5})"},
  });
  ExpectErrors({"{{ [q]|tojson }}", "{{ {(1, 2): 3}|tojson }}", "{{ range(3)|tojson }}",
                "{{ namespace()|tojson }}"});
}

TEST(Jinja, Filters) {
  ExpectAll({
      {"{{ xs|join(', ') }} {{ xs|first }} {{ xs|last }} {{ xs|sum }} {{ xs|min }} {{ xs|max }}",
       "3, 1, 2 3 2 6 1 3"},
      {"{{ xs|sort }} {{ xs|sort(reverse=true) }} {{ ['b', 'A', 'a']|sort }} {{ [1, 1, "
       "2]|unique|list }}",
       "[1, 2, 3] [3, 2, 1] ['A', 'a', 'b'] [1, 2]"},
      {"{{ ms|map(attribute='role')|unique|join(',') }} {{ xs|map('string')|join }}",
       "user,assistant 312"},
      {"{{ ms|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }}",
       "['a', 'c']"},
      {"{{ ms|rejectattr('role', 'eq', 'user')|list|length }} {{ xs|select('odd')|list }}",
       "1 [3, 1]"},
      {"{{ [0, '', 1]|select|list }} {{ xs|reject('gt', 1)|list }}", "[1] [1]"},
      {"{{ {'b': 1, 'a': 2}|dictsort }} {{ {'b': 1}|items|list }}",
       "[('a', 2), ('b', 1)] [('b', 1)]"},
      {"{{ 'a\nb'|indent }}|{{ 'a\n\nb'|indent(2, true, true) }}", "a\n    b|  a\n  \n  b"},
      {"{{ 'hello wORLD-foo'|title }} {{ 'hELLO'|capitalize }} {{ ' x '|trim }} {{ 'abc'|reverse "
       "}}",
       "Hello World-Foo Hello x cba"},
      {"{{ 'foo bar baz qux'|truncate(9) }} {{ xs|batch(2)|list }} {{ xs|slice(2)|list }}",
       "foo... [[3, 1], [2]] [[3, 1], [2]]"},
      {"{{ ''|default('e', true) }} {{ '<&'|e }} {{ '<'|safe }} {{ none|string }} {{ 5|float }}",
       "e &lt;&amp; < None 5.0"},
      {"{{ ms|groupby('role')|map('first')|list }} {{ 'a b/c'|urlencode }} {{ 'a b-c'|wordcount }}",
       "['assistant', 'user'] a%20b/c 3"},
  });
  ExpectErrors({"{{ n|nope }}", "{{ n|length }}", "{{ n|first }}", "{{ [1, 'a']|sort }}",
                "{{ ['a']|sum }}", "{{ xs|map('nope')|list }}", "{{ [[]]|unique|list }}",
                "{{ 'a'|replace('b') }}"});
}

TEST(Jinja, GeneratorsAreWalkedOnceAndFailLate) {
  ExpectAll({
      {"{% set g = xs|map('string') %}{{ g|list }}{{ g|list }}", "['3', '1', '2'][]"},
      {"{% set g = xs|select('odd') %}{{ g|first }}{{ g|list }}", "3[1]"},
      {"{% set g = xs|map('nope') %}ok", "ok"},
      {"{% if (xs|map('string')) %}always true{% endif %}", "always true"},
      {"{{ (xs|map('string'))[0] is defined }}", "False"},
  });
  ExpectErrors({"{{ xs|map('string')|length }}", "{{ xs|map('string')|last }}"});
}

TEST(Jinja, Tests) {
  ExpectAll({
      {"{{ none is none }}{{ 1 is number }}{{ true is number }}{{ 1 is integer }}{{ true is "
       "integer }}",
       "TrueTrueTrueTrueFalse"},
      {"{{ 'a' is string }}{{ {} is mapping }}{{ [] is mapping }}{{ 'a' is sequence }}{{ 5 is "
       "iterable }}",
       "TrueTrueFalseTrueFalse"},
      {"{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 4 is not divisibleby(3) }}{{ 2 is in [1, 2] }}{{ "
       "1 is eq 1 }}",
       "TrueTrueTrueTrueTrue"},
      {"{{ 1 is sameas 1.0 }}{{ range is callable }}{{ 'upper' is filter }}{{ 'ABC' is upper }}{{ "
       "false is false }}",
       "FalseTrueTrueTrueTrue"},
      {"{{ 1.5 is float }}{{ 1 is boolean }}{{ 2 is gt 1 }}{{ 'a' is ne 'b' }}",
       "TrueFalseTrueTrue"},
  });
  ExpectErrors(
      {"{{ 1 is nope }}", "{{ 'a' is odd }}", "{{ none is gt 1 }}", "{{ 1 is divisibleby 0 }}"});
}

TEST(Jinja, Loops) {
  ExpectAll({
      {"{% for x in xs %}{{ loop.index }}/{{ loop.length }}{{ loop.revindex0 }}{{ loop.first }}{{ "
       "loop.last }} "
       "{% endfor %}",
       "1/32TrueFalse 2/31FalseFalse 3/30FalseTrue "},
      {"{% for x in xs if x > 1 %}{{ loop.index }}{{ x }}{{ loop.length }} {% else %}none{% endfor "
       "%}",
       "132 222 "},
      {"{% for x in [] %}{% else %}none{% endfor %}{% for x in xs %}{{ loop.nextitem }}{{ "
       "loop.previtem }};{% endfor %}",
       "none1;23;1;"},
      {"{% for x in xs %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 2) }} {% endfor %}",
       "aTrue bTrue aFalse "},
      {"{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "32"},
      {"{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}no{% endfor %}",
       "3"},
      {"{% for n in tree recursive %}{{ n.n }}{{ loop.depth }}{% if n.c %}[{{ loop(n.c) }}]{% "
       "endif %}{% endfor %}",
       "11[2232[43]]"},
      {"{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for k, v in {'x': "
       "1}.items() %}"
       "{{ k }}{{ v }}{% endfor %}",
       "123x1"},
      {"{% for c in u %}{{ c }},{% endfor %}{% for i in 1, 2 %}{{ i }}{% endfor %}",
       "日,本,語,🎉,x,12"},
      {"{% for x in xs %}{% for y in xs %}{{ loop.index0 }}{% endfor %}{{ loop.index }};{% endfor "
       "%}",
       "0121;0122;0123;"},
      {"{% set ns = namespace(go=true) %}{% for x in xs if ns.go %}{{ x }}{% set ns.go = false "
       "%}{% endfor %}",
       "3"},
  });
  ExpectErrors({"{% for x in 5 %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% break %}",
                "{% for x in xs %}{{ loop(xs) }}{% endfor %}",
                "{% for x in xs %}{% set loop = 1 %}{% endfor %}",
                "{% for a, b in [(1, 2, 3)] %}{% endfor %}"});
}

TEST(Jinja, Scopes) {
  ExpectAll({
      {"{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
       "2 3 1"},
      {"{% if yes %}{% set x = 1 %}{% endif %}{{ x }}", "1"},
      {"{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n "
       "}}{{ ns }}",
       "6<Namespace {'n': 6}>"},
      {"{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "15"},
      {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t %}x{{ a }}{% endset %}{{ t }}{% set t|upper "
       "%}y{% endset %}{{ t }}",
       "12x1Y"},
      {"{% filter upper|replace('A', 'b') %}a{{ n }}{% endfilter %}{% print n, f %}", "b552.5"},
      {"{% block b %}x{{ n }}{% endblock %}{% generation %}{% set z = 1 %}{{ z }}{% endgeneration "
       "%}{{ z }}",
       "x51"},
      // A name that a block sets first is its own from the start.
      {"{% for i in [1] %}[{{ n }}]{% endfor %}{% set n = 1 %}{{ n }}", "[]1"},
      {"{{ n }}{% for i in [1] %}[{{ n }}]{% endfor %}{% set n = 1 %}{{ n }}", "5[5]1"},
      {"{% if nothing %}{% set n = 1 %}{% endif %}{% for i in [1] %}[{{ n }}]{% endfor %}", "[5]"},
  });
  ExpectErrors(
      {"{% set n.x = 1 %}", "{% set true = 1 %}", "{% set a, b = [1] %}", "{% set 1 = 2 %}"});
}

TEST(Jinja, Macros) {
  ExpectAll({
      {"{% macro f(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(b=3, a=4) "
       "}}{{ f() }}",
       "[121][434][2]"},
      {"{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}",
       "1(2,){'x': 3}"},
      {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
       "3210"},
      {"{% macro f(x) %}<{{ caller(x, y=2) }}>{% endmacro %}{% call(a, y) f(1) %}{{ a }}{{ y }}{{ "
       "n }}{% endcall %}",
       "<125>"},
      {"{% macro f() %}{% if caller %}{{ caller() }}{% else %}no{% endif %}{% endmacro %}{{ f() }}",
       "no"},
      {"{% macro f(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(*[1, 2], **{'c': 3}) }}",
       "123"},
      {"{% macro f(a) %}{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f }}", "f('a',)<Macro 'f'>"},
      {"{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = "
       "joiner('|') %}"
       "{% for x in xs %}{{ j() }}{{ x }}{% endfor %}",
       "aba3|1|2"},
      {"{{ dict(a=1, b=2) }}{{ dict([('x', 1)]) }}", "{'a': 1, 'b': 2}{'x': 1}"},
  });
  ExpectErrors({"{{ f() }}{% macro f() %}{% endmacro %}", "{% macro f() %}{% endmacro %}{{ f(1) }}",
                "{% macro f() %}{% endmacro %}{{ f(a=1) }}", "{% macro f(a=1, b) %}{% endmacro %}",
                "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
                "{% macro f(a, a) %}{% endmacro %}",
                "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}"});
}

TEST(Jinja, SyntaxErrors) {
  ExpectErrors({"{{ x",
                "{{ }}",
                "{% if %}{% endif %}",
                "{% if yes %}",
                "{% endif %}",
                "{% nope %}",
                "{% raw %} a",
                "{# a",
                "{{ (1 }}",
                "{{ 1) }}",
                "{{ 'a }}",
                "{{ x! }}",
                "{{ 1 2 }}",
                "{{ x.}}",
                "{{ f(a=1, 2) }}",
                "{{ f(a=1, a=2) }}",
                "{{ x | }}",
                "{{ x is }}",
                "{{ {'a'} }}",
                "{{ x[1:2:3:4] }}",
                "{% for x in %}",
                "{% set a %}",
                "{{ '\\x1' }}",
                "{% if yes %}{% else %}{% else %}{% endif %}",
                "{{ x = 1 }}"});
}

TEST(Jinja, ErrorsNameTheLine) {
  const Result<std::string> at_runtime = Render("a\n\n{% if yes %}\n  {{ q.x }}\n{% endif %}");
  ASSERT_FALSE(at_runtime);
  EXPECT_EQ(at_runtime.error().message, "chat template: line 4: 'q' is undefined");
  EXPECT_EQ(at_runtime.error().code, ErrorCode::kInvalidInput);
  const Result<std::string> parsing = Render("a\n{{ 'x\ny' }}{{ 1 +\n}}");
  ASSERT_FALSE(parsing);
  EXPECT_EQ(parsing.error().message, "chat template: line 4: unexpected '}}'");
  const Result<std::string> raised = Render("{{ raise_exception('roles\nalternate') }}");
  ASSERT_FALSE(raised);
  EXPECT_EQ(raised.error().message, "chat template: line 1: roles alternate");
  const Result<std::string> quoted = Render("{{ d['a\nb'].c }}");
  ASSERT_FALSE(quoted);
  EXPECT_EQ(quoted.error().message, "chat template: line 2: 'dict object' has no attribute 'a b'");
}

TEST(Jinja, UnknownFiltersAreErrorsUnlessAnIfKeepsThemAway) {
  ExpectAll({{"{% if false %}{{ n|nope }}{% endif %}ok{{ n|nope if false }}", "ok"},
             {"{% if 'nope' is filter %}{{ n|nope }}{% else %}without{% endif %}", "without"}});
  ExpectErrors({"{% if false %}{% for x in xs %}{{ x|nope }}{% endfor %}{% endif %}",
                "{% for x in [] %}{{ x|nope }}{% endfor %}"});
}

TEST(Jinja, OtherTemplatesAreNotSupported) {
  ExpectAll({{"{% if false %}{% include 'a' %}{% endif %}ok", "ok"}});
  for (const std::string_view source : {"{% include 'a' %}", "{% extends 'a' %}",
                                        "{% import 'a' as b %}", "{% from 'a' import b %}"}) {
    const Result<std::string> got = Render(source);
    ASSERT_FALSE(got) << source;
    EXPECT_EQ(got.error().code, ErrorCode::kUnsupported) << source;
  }
}

// --- hostile templates

TEST(JinjaLimits, WorkMemoryOutputAndDepthEndInErrors) {
  const JinjaLimits small = {.max_template_bytes = 1 << 16,
                             .max_output_bytes = 1 << 16,
                             .max_working_bytes = 1 << 20,
                             .max_steps = 100'000,
                             .max_depth = 700};
  const std::vector<std::string> sources = {
      "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
      "{{ 'x' * 999999999999 }}",
      "{{ [0] * 999999999 }}",
      ("{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
       "endfor %}"),
      ("{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
       "endfor %}"),
      "{% set ns = namespace(s=[]) %}{% for i in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}",
      ("{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% "
       "endfor %}{{ ns.s }}"),
      ("{% set ns = namespace(s=1, t=1) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}"
       "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}"),
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      ("{% macro f(x) %}{{ caller(x) }}{% endmacro %}{% macro g() %}{% call(x) f(1) %}{{ g() }}{% "
       "endcall %}"
       "{% endmacro %}{{ g() }}"),
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% for x in range(99999) %}0123456789{% endfor %}",
      "{{ '%99999999d' % 1 }}",
      "{{ '{:>99999999}'.format(1) }}",
      "{{ 'x'.center(99999999999) }}",
      "{{ 'x'|indent(99999999999, true) }}",
      "{{ [1]|tojson(indent=99999999999) }}",
      "{{ 'aaaaaaaaaaaaaaaa'.replace('', 'x' * 60000) }}",
      "{{ ('ab' * 9999).split('b')|join('x' * 9999) }}",
      "{{ strftime_now('%100000d') }}",
      "{{ 'a\t'.expandtabs(99999999) }}",
      "{{ [1]|batch(99999999, 0)|list }}",
      "{{ [1]|slice(99999999)|list }}",
      Repeat("{{ ", "(", 300) + Repeat("1", ")", 300) + " }}",
      Repeat("{{ ", "[", 300) + Repeat("", "]", 300) + " }}",
      Repeat("{{ ", "-", 300) + "1 }}",
      Repeat("{{ 1", "+1", 5000) + " }}",
      Repeat("", "{% if yes %}", 300) + Repeat("", "{% endif %}", 300),
      std::string(1 << 17, 'x'),
      "\xff",
  };
  for (const std::string& source : sources) {
    const Result<std::string> got = Render(source, small);
    EXPECT_FALSE(got) << source.substr(0, 80);
  }
}

// Values that hold each other, and long chains of them, are freed (the leak checker watches)
// without using the stack for each link.
TEST(JinjaLimits, CyclesAndChainsAreTakenApart) {
  ExpectAll({
      {"{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.list = [ns, {'a': ns}] %}ok", "ok"},
      {"{% macro f() %}{{ f is defined }}{% endmacro %}{% set ns = namespace(f=f) %}{{ f() }}",
       "True"},
      {"{% set ns = namespace() %}{% for x in xs %}{% set ns.l = loop %}{% set q = "
       "loop.changed(loop) %}{% endfor %}ok",
       "ok"},
      {"{% set ns = namespace() %}{% for x in xs recursive %}{% set ns.l = loop %}{% endfor %}ok",
       "ok"},
      {"{% set ns = namespace(p=none) %}{% for i in range(50000) %}{% set q = namespace(p=ns.p) %}"
       "{% set ns.p = q %}{% endfor %}ok",
       "ok"},
      {"{% set ns = namespace(m=none) %}{% macro g(old) %}{% macro m() %}{{ old }}{% endmacro %}{% "
       "set ns.m = m %}"
       "{% endmacro %}{% for i in range(20000) %}{% set q = g(ns.m) %}{% endfor %}ok",
       "ok"},
  });
  ExpectErrors({
      "{% set ns = namespace(c=1) %}{% for i in range(50000) %}{% set ns.c = cycler(ns.c) %}{% "
      "endfor %}",
      "{% set ns = namespace(c={}) %}{% for i in range(50000) %}{% set ns.c = {'a': ns.c.get} %}"
      "{% set ns.c = {'b': ns.c.items()} %}{% endfor %}",
      "{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns }}",
  });
}

// Any mixture of pieces of templates parses and renders, or fails with one line.
TEST(JinjaLimits, RandomPieces) {
  static constexpr std::string_view kPieces[] = {"{{",
                                                 "}}",
                                                 "{%",
                                                 "%}",
                                                 "{%-",
                                                 "-%}",
                                                 "{#",
                                                 "#}",
                                                 " if ",
                                                 " endif ",
                                                 " for x in xs ",
                                                 " endfor ",
                                                 " else ",
                                                 " set a = ",
                                                 " macro f(a) ",
                                                 " endmacro ",
                                                 "xs",
                                                 "d",
                                                 "n",
                                                 "'s'",
                                                 "[",
                                                 "]",
                                                 "(",
                                                 ")",
                                                 "{",
                                                 "}",
                                                 ".",
                                                 "|",
                                                 ",",
                                                 ":",
                                                 "+",
                                                 "-",
                                                 "*",
                                                 "//",
                                                 "~",
                                                 " in ",
                                                 " is ",
                                                 " not ",
                                                 " and ",
                                                 "join",
                                                 "list",
                                                 "map",
                                                 "tojson",
                                                 "defined",
                                                 "loop.index",
                                                 "f(",
                                                 "1",
                                                 "2.5",
                                                 "\n",
                                                 " ",
                                                 "ms[0].role",
                                                 "raw",
                                                 "endraw",
                                                 "'",
                                                 "\"",
                                                 "=",
                                                 "é"};
  JinjaLimits limits;
  limits.max_steps = 20'000;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    std::string source;
    for (uint64_t i = rng.Below(30) + 2; i > 0; --i) {
      source += kPieces[rng.Below(std::size(kPieces))];
    }
    const Result<std::string> got = Render(source, limits);
    if (!got) {
      EXPECT_EQ(got.error().message.find('\n'), std::string::npos)
          << "seed " << seed << ": " << source;
    }
  }
}

}  // namespace
}  // namespace kvik::text
