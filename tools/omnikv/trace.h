/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Request traces: what was asked of a serving system and when, as lists of block keys.
 *
 * Four formats are read (okv_trace_format), each line on its own by a pure parser, so that a
 * bad line costs that line only. A trace holds requests in the order in which they are played;
 * built-in workloads (workload.h) fill the same structure. Replaying is replay.h's.
 *
 * One thread uses a trace.
 */
#ifndef OKV_TRACE_H
#define OKV_TRACE_H

#include <stdio.h>

#include <omnikv/key.h>

#define OKV_TRACE_LINE_MAX	(64u << 20)	/* bytes */
#define OKV_TRACE_LINE_END	(256u << 20)	/* bytes; where a line has no end before, it is no trace */
#define OKV_TRACE_TOKENS_MAX	(1u << 28)	/* tokens of a prompt */
#define OKV_MOONCAKE_TOKENS	512u		/* tokens that one Mooncake id stands for */

enum okv_trace_format {
	OKV_TRACE_AUTO,
	OKV_TRACE_MOONCAKE,	/* JSONL: timestamp (ms), input_length, output_length, hash_ids */
	OKV_TRACE_AZURE,	/* CSV: TIMESTAMP,ContextTokens,GeneratedTokens */
	OKV_TRACE_TOKENS,	/* JSONL: arrival_time_ns, input_tok_ids */
	OKV_TRACE_TEXT,		/* JSONL: timestamp (us), input; a byte is a token */
	OKV_TRACE_NR_FORMATS,
};

/** Name as users type it; NULL for a value that there is not. */
const char *okv_trace_format_name(enum okv_trace_format format);
/** -EINVAL for an unknown name. */
int okv_trace_format_parse(const char *name, enum okv_trace_format *format);

/**
 * struct okv_trace_line - what one line says
 * @time_ns:       arrival, in the file's own epoch
 * @nr_tokens:     of the prompt, 0 to OKV_TRACE_TOKENS_MAX
 * @output_tokens: 0 where the format has none
 * @ids:           [nr_ids] MOONCAKE: one id a block
 * @tokens:        [nr_tokens] TOKENS, TEXT
 *
 * Arrays belong to the line and are re-used by the next; end with okv_trace_line_fini().
 */
struct okv_trace_line {
	uint64_t	time_ns;
	uint64_t	nr_tokens;
	uint64_t	output_tokens;
	uint64_t	*ids;
	size_t		nr_ids;
	size_t		max_ids;
	uint32_t	*tokens;
	size_t		max_tokens;
};

void okv_trace_line_fini(struct okv_trace_line *line);

/**
 * okv_trace_line_parse() - read one line
 * @text: [len] without its newline; any bytes
 * @err:  reason, without file and line number
 *
 * Return: 1, 0 (nothing to play: an empty line, the header of a CSV file), -EINVAL (malformed), -ENOMEM.
 */
int okv_trace_line_parse(enum okv_trace_format format, const char *text, size_t len,
			 struct okv_trace_line *line, struct omnikv_error *err);
/** Format of a file whose first line is @text; -EINVAL with the reason in @err. */
int okv_trace_detect(const char *text, size_t len, enum okv_trace_format *format, struct omnikv_error *err);

/**
 * okv_trace_detect_file() - format of a file by its first line that is not empty
 *
 * Return: 0, or with the reason in @err: -EINVAL (no format that is known; a line that is too long), -ENODATA (no
 * such line), -EIO, -ENOMEM.
 */
int okv_trace_detect_file(FILE *stream, enum okv_trace_format *format, struct omnikv_error *err);

/* One parser each; as okv_trace_line_parse(). */
int okv_trace_mooncake_parse(const char *text, size_t len, struct okv_trace_line *line, struct omnikv_error *err);
int okv_trace_azure_parse(const char *text, size_t len, struct okv_trace_line *line, struct omnikv_error *err);
int okv_trace_tokens_parse(const char *text, size_t len, struct okv_trace_line *line, struct omnikv_error *err);
int okv_trace_text_parse(const char *text, size_t len, struct okv_trace_line *line, struct omnikv_error *err);

/**
 * struct okv_request - one request of a trace
 * @time_ns:         arrival
 * @nr_tokens:       of the prompt
 * @output_tokens:   that followed; not played
 * @lookup_tokens:   leading tokens whose blocks are looked up: nr_tokens, or less where a session knows where
 *                   its last prompt ended
 * @nr_blocks:       blocks with a key: full ones, and the tail where it is shared
 * @is_tail_shared:  the partial tail is published under a key of its own
 * @first_word:      into okv_trace.words, the key of the first block
 * @key_words:       64-bit words a key
 * @is_unique:       no content is known: keys are made from the request's number; no words
 */
struct okv_request {
	uint64_t	time_ns;
	uint64_t	nr_tokens;
	uint64_t	output_tokens;
	uint64_t	lookup_tokens;
	uint64_t	first_word;
	uint64_t	order;		/* place before sorting by time */
	uint32_t	nr_blocks;
	uint8_t		key_words;
	bool		is_tail_shared;
	bool		is_unique;
};

/* Which id stands before an id. One key has one prefix, in all files of a trace. */
struct okv_chain_link {
	uint64_t	id;
	uint64_t	parent;		/* OKV_CHAIN_ROOT: none */
	uint32_t	tail_tokens;	/* 0: a full block */
	bool		is_used;
};

#define OKV_CHAIN_ROOT	UINT64_MAX

/**
 * struct okv_trace - requests in the order in which they are played
 * @block_tokens: T
 * @nr_malformed: lines that were left out
 */
struct okv_trace {
	struct okv_request	*requests;
	size_t			nr_requests;
	size_t			max_requests;
	uint64_t		*words;
	size_t			nr_words;
	size_t			max_words;
	uint32_t		block_tokens;
	uint64_t		nr_malformed;
	struct okv_chain_link	*links;		/* [max_links], a power of two; hashed by id and tail */
	size_t			nr_links;
	size_t			max_links;
};

void okv_trace_init(struct okv_trace *trace, uint32_t block_tokens);
void okv_trace_fini(struct okv_trace *trace);

/** Called for each malformed line; @text is "file:line: reason". */
typedef void (*okv_trace_malformed_fn)(void *opaque, const char *text);

/**
 * struct okv_trace_file - how a file is read
 * @name:      for messages
 * @format:    not AUTO
 * @is_strict: stop at the first malformed line with -EBADMSG
 * @malformed: may be NULL
 */
struct okv_trace_file {
	const char		*name;
	enum okv_trace_format	format;
	bool			is_strict;
	okv_trace_malformed_fn	malformed;
	void			*opaque;
};

/**
 * okv_trace_read() - add all requests of a stream
 *
 * A line with ids one of which stood behind another one before is malformed.
 *
 * Return: the number of requests added, or -EBADMSG (strict, or no trace at all), -EIO, -ENOMEM.
 */
int64_t okv_trace_read(struct okv_trace *trace, FILE *stream, const struct okv_trace_file *file,
		       struct omnikv_error *err);
/** Add one parsed line. */
int okv_trace_add_line(struct okv_trace *trace, enum okv_trace_format format, const struct okv_trace_line *line);
/** Room for one more request with @nr_words words of keys, zeroed; NULL: no memory. */
struct okv_request *okv_trace_add(struct okv_trace *trace, size_t nr_words);
/** Order by time; requests of the same time stay in the order in which they were added. */
void okv_trace_sort(struct okv_trace *trace);
/** Keep the first @nr requests. */
void okv_trace_cut(struct okv_trace *trace, size_t nr);

/** Tokens of block @idx: T, or fewer in the tail. */
uint32_t okv_request_block_tokens(const struct okv_trace *trace, const struct okv_request *req, uint64_t idx);
/**
 * Key of the content of block @idx, whatever its length. Defined for every block of the prompt, also
 * for a tail that is not shared (whose content nobody else has).
 */
void okv_request_content_key(const struct okv_trace *trace, const struct okv_request *req, uint64_t idx,
			     struct omnikv_key *key);

#endif /* OKV_TRACE_H */
