// SPDX-License-Identifier: GPL-2.0-only
/*
 * How results of benchmarks look: a table, a comparison of two runs, a drawing. From JSON alone, so
 * that a run of yesterday prints as one of now. Judges nothing. One thread.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "cmd.h"

/* One row, its texts borrowed from the JSON. Absent figures are NAN. */
struct okv_line {
	const char	*row;
	const char	*workload;
	const char	*unit;
	const char	*clock;
	const char	*pages;
	const char	*limit_name;
	const char	*peer_name;
	const char	*target_of;
	bool		is_lower_better;
	double		ours;
	double		min;
	double		max;
	double		limit;
	double		peer;
	double		ratio;
	double		target;
	double		times_peer;
};

static const char *okv_text_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

static double okv_number_of(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static int okv_line_read(const json_t *row, struct okv_line *line)
{
	const json_t *ours = json_object_get(row, "ours"), *limit = json_object_get(row, "limit");
	const json_t *peer = json_object_get(row, "peer");

	*line = (struct okv_line) {
		.row = okv_text_of(row, "row"), .workload = okv_text_of(row, "workload"), .unit = okv_text_of(row, "unit"),
		.clock = okv_text_of(row, "clock"), .pages = okv_text_of(row, "pages"),
		.limit_name = okv_text_of(limit, "name"), .peer_name = okv_text_of(peer, "name"),
		.target_of = okv_text_of(row, "target_of"), .is_lower_better = !strcmp(okv_text_of(row, "better"), "lower"),
		.ours = okv_number_of(ours, "median"), .min = okv_number_of(ours, "min"), .max = okv_number_of(ours, "max"),
		.limit = okv_number_of(limit, "median"), .peer = okv_number_of(peer, "median"),
		.ratio = okv_number_of(json_object_get(row, "ratio"), "median"), .target = okv_number_of(row, "target"),
	};
	line->times_peer = line->is_lower_better ? line->peer / line->ours : line->ours / line->peer;
	return line->row[0] && line->workload[0] && !isnan(line->ours) ? 0 : -EINVAL;
}

/* Three significant digits, without an exponent. */
static const char *okv_figure_text(double x, char text[24])
{
	double size = fabs(x);

	if (isnan(x))
		snprintf(text, 24, "-");
	else
		snprintf(text, 24, "%.*f", size >= 99.95 || size == 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3, x);
	return text;
}

static const char *okv_target_text(const struct okv_line *line, char text[40])
{
	bool is_ratio = !strcmp(line->target_of, "ratio");

	if (isnan(line->target))
		snprintf(text, 40, "-");
	else
		snprintf(text, 40, "%s %g%s%s", line->is_lower_better ? "<=" : ">=", line->target, is_ratio ? "" : " ",
			 is_ratio ? "" : line->unit);
	return text;
}

static int okv_width(int width, const char *text)
{
	int len = (int)strlen(text);

	return len > width ? len : width;
}

/* Columns are as wide as their widest cell; the second is flush left, as are the texts at the end. */
enum { C_ROW, C_WORKLOAD, C_UNIT, C_LIMIT, C_PEER, C_OURS, C_SPREAD, C_RATIO, C_TARGET, C_TIMES, C_PAGES, NR_C };

static void okv_cells(const struct okv_line *line, char cells[NR_C][96])
{
	char a[24], b[24], target[40];

	snprintf(cells[C_ROW], 96, "%s", line->row);
	snprintf(cells[C_WORKLOAD], 96, "%s", line->workload);
	snprintf(cells[C_UNIT], 96, "%s", line->unit);
	snprintf(cells[C_LIMIT], 96, "%s", okv_figure_text(line->limit, a));
	snprintf(cells[C_PEER], 96, "%s", okv_figure_text(line->peer, a));
	snprintf(cells[C_OURS], 96, "%s", okv_figure_text(line->ours, a));
	snprintf(cells[C_SPREAD], 96, "%s..%s", okv_figure_text(line->min, a), okv_figure_text(line->max, b));
	if (isnan(line->ratio))
		snprintf(cells[C_RATIO], 96, "-");
	else
		snprintf(cells[C_RATIO], 96, "%.3f", line->ratio);
	snprintf(cells[C_TARGET], 96, "%s", okv_target_text(line, target));
	snprintf(cells[C_TIMES], 96, "%s", okv_figure_text(line->times_peer, a));
	snprintf(cells[C_PAGES], 96, "%s", line->pages[0] ? line->pages : "-");
}

static void okv_print_cells(FILE *out, char cells[NR_C][96], const int widths[NR_C])
{
	int c;

	for (c = 0; c < NR_C; c++) {
		bool is_left = c <= C_UNIT || c == C_TARGET;

		if (c == C_PAGES)
			fprintf(out, "  %s\n", cells[c]);
		else
			fprintf(out, "%s%*s", c ? "  " : "", is_left ? -widths[c] : widths[c], cells[c]);
	}
}

static void okv_heading(FILE *out, const json_t *run)
{
	const json_t *machine = json_object_get(run, "machine");
	char memory[24], footprint[24];
	double huge = okv_number_of(run, "huge_pages_reserved");

	fprintf(out, "omnikv %s, %s: %s, %.0f CPUs, %s, Linux %s, load %.1f, nice %.0f\n", okv_text_of(run, "omnikv"),
		okv_text_of(run, "date"), okv_text_of(machine, "cpu"), okv_number_of(machine, "cpus"),
		okv_bytes_text((uint64_t)okv_number_of(machine, "memory_bytes"), memory), okv_text_of(machine, "kernel"),
		okv_number_of(machine, "load"), okv_number_of(machine, "nice"));
	fprintf(out, "footprint %s, %.0f huge pages reserved; medians, ratio is ours over the limit\n\n",
		okv_bytes_text((uint64_t)okv_number_of(run, "footprint_bytes"), footprint), huge);
}

static int okv_check(const json_t *run, const char **why)
{
	static const char *const texts[] = { "cpu", "kernel" }, *const numbers[] = { "cpus", "memory_bytes", "load", "nice" };
	const json_t *machine = json_object_get(run, "machine"), *rows = json_object_get(run, "rows"), *row;
	struct okv_line line;
	size_t i;

	*why = "it has no machine";
	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		if (!json_is_string(json_object_get(machine, texts[i])))
			return -EINVAL;
	}
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!json_is_number(json_object_get(machine, numbers[i])) || okv_number_of(machine, numbers[i]) > 1e18)
			return -EINVAL;
	}
	*why = "it has no footprint";
	if (!(okv_number_of(run, "footprint_bytes") >= 0 && okv_number_of(run, "footprint_bytes") < 1e18) ||
	    !json_is_number(json_object_get(run, "huge_pages_reserved")))
		return -EINVAL;
	*why = "it has no rows";
	if (!json_is_array(rows))
		return -EINVAL;
	*why = "a row lacks its name, workload or figures";
	json_array_foreach(rows, i, row) {
		if (okv_line_read(row, &line))
			return -EINVAL;
	}
	return 0;
}

/* Is what the legend says of row @i said of an earlier one? */
static bool okv_is_said(const json_t *rows, size_t i, const struct okv_line *line)
{
	struct okv_line before;
	size_t k;

	for (k = 0; k < i; k++) {
		okv_line_read(json_array_get(rows, k), &before);
		if (!strcmp(line->row, before.row) && !strcmp(line->limit_name, before.limit_name) &&
		    !strcmp(line->peer_name, before.peer_name) && !strcmp(line->clock, before.clock))
			return true;
	}
	return false;
}

/* Names of limit, peer and clock, at the first row that has these. */
static void okv_legend(FILE *out, const json_t *rows)
{
	struct okv_line line;
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) {
		okv_line_read(row, &line);
		if (okv_is_said(rows, i, &line))
			continue;
		fprintf(out, "%-4s %s: %s time%s%s%s%s\n", line.row, line.workload, line.clock,
			line.limit_name[0] ? "; limit: " : "", line.limit_name, line.peer_name[0] ? "; peer: " : "",
			line.peer_name);
	}
}

int okv_bench_table(FILE *out, const json_t *run, const char **why)
{
	static char titles[NR_C][96] = { "row", "workload", "unit", "limit", "peer", "ours", "spread", "ratio", "target",
					 "x peer", "pages" };
	const json_t *rows = json_object_get(run, "rows"), *row;
	char cells[NR_C][96];
	int widths[NR_C] = { 0 }, c;
	struct okv_line line;
	size_t i;

	if (okv_check(run, why))
		return -EINVAL;
	for (c = 0; c < NR_C; c++)
		widths[c] = okv_width(0, titles[c]);
	json_array_foreach(rows, i, row) {
		okv_line_read(row, &line);
		okv_cells(&line, cells);
		for (c = 0; c < NR_C; c++)
			widths[c] = okv_width(widths[c], cells[c]);
	}
	okv_heading(out, run);
	okv_print_cells(out, titles, widths);
	json_array_foreach(rows, i, row) {
		okv_line_read(row, &line);
		okv_cells(&line, cells);
		okv_print_cells(out, cells, widths);
	}
	fputc('\n', out);
	okv_legend(out, rows);
	return 0;
}

static const json_t *okv_row_find(const json_t *rows, const struct okv_line *line)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) {
		if (!strcmp(okv_text_of(row, "row"), line->row) && !strcmp(okv_text_of(row, "workload"), line->workload))
			return row;
	}
	return NULL;
}

int okv_bench_compare(FILE *out, const json_t *old, const json_t *run, const char **why)
{
	const json_t *rows = json_object_get(run, "rows"), *old_rows = json_object_get(old, "rows"), *row, *found;
	const char *old_cpu = okv_text_of(json_object_get(old, "machine"), "cpu");
	const char *cpu = okv_text_of(json_object_get(run, "machine"), "cpu");
	struct okv_line line, before;
	int width = (int)strlen("workload");
	char a[24], b[24];
	size_t i;

	if (okv_check(old, why) || okv_check(run, why))
		return -EINVAL;
	json_array_foreach(rows, i, row)
		width = okv_width(width, okv_text_of(row, "workload"));
	fprintf(out, "against %s%s\n\n", okv_text_of(old, "date"), strcmp(old_cpu, cpu) ? ", on another CPU" : "");
	fprintf(out, "%-4s  %-*s  %-9s  %8s  %8s  %8s  %11s\n", "row", width, "workload", "unit", "then", "now", "change",
		"ratio then");
	json_array_foreach(rows, i, row) {
		okv_line_read(row, &line);
		fprintf(out, "%-4s  %-*s  %-9s  ", line.row, width, line.workload, line.unit);
		found = okv_row_find(old_rows, &line);
		if (!found) {
			fprintf(out, "%8s  %8s  %8s  %11s\n", "-", okv_figure_text(line.ours, a), "new", "-");
			continue;
		}
		okv_line_read(found, &before);
		fprintf(out, "%8s  %8s  %+6.1f %%  ", okv_figure_text(before.ours, a), okv_figure_text(line.ours, b),
			before.ours ? 100 * (line.ours / before.ours - 1) : 0.0);
		if (isnan(before.ratio))
			fprintf(out, "%11s\n", "-");
		else
			fprintf(out, "%11.3f\n", before.ratio);
	}
	json_array_foreach(old_rows, i, row) {
		okv_line_read(row, &line);
		if (!okv_row_find(rows, &line))
			fprintf(out, "%-4s  %s: then only\n", line.row, line.workload);
	}
	return 0;
}

/* Text of XML. */
static void okv_xml(FILE *out, const char *text)
{
	for (; *text; text++) {
		switch (*text) {
		case '&': fputs("&amp;", out); break;
		case '<': fputs("&lt;", out); break;
		case '>': fputs("&gt;", out); break;
		default: fputc(*text, out);
		}
	}
}

int okv_bench_svg(FILE *out, const json_t *run, const char **why)
{
	const json_t *rows = json_object_get(run, "rows"), *row;
	struct okv_line line;
	unsigned int nr = 0;
	double y = 40;
	size_t i;

	if (okv_check(run, why))
		return -EINVAL;
	json_array_foreach(rows, i, row) {
		okv_line_read(row, &line);
		nr += !isnan(line.ratio);
	}
	/* 300 units of width are a ratio of 1; bars end at 2. */
	fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1100 %u\" font-family=\"sans-serif\" font-size=\"13\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"10\" y=\"22\">", 60 + 24 * nr);
	okv_xml(out, okv_text_of(json_object_get(run, "machine"), "cpu"));
	fprintf(out, ", %s: ours over the limit (line: 1; mark: target)</text>\n", okv_text_of(run, "date"));
	json_array_foreach(rows, i, row) {
		okv_line_read(row, &line);
		if (isnan(line.ratio))
			continue;
		fprintf(out, "<text x=\"10\" y=\"%.0f\">%s ", y + 14, line.row);
		okv_xml(out, line.workload);
		fprintf(out, "</text>\n<rect x=\"400\" y=\"%.0f\" width=\"%.1f\" height=\"16\" fill=\"#5b8db8\"/>\n", y + 2,
			300 * (line.ratio > 2 ? 2 : line.ratio));
		if (!strcmp(line.target_of, "ratio") && line.target <= 2)
			fprintf(out, "<rect x=\"%.1f\" y=\"%.0f\" width=\"3\" height=\"20\" fill=\"#b03a2e\"/>\n",
				400 + 300 * line.target, y);
		fprintf(out, "<text x=\"1010\" y=\"%.0f\">%.3f</text>\n", y + 14, line.ratio);
		y += 24;
	}
	fprintf(out, "<line x1=\"700\" y1=\"36\" x2=\"700\" y2=\"%.0f\" stroke=\"black\"/>\n</svg>\n", y);
	return 0;
}
