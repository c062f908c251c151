// SPDX-License-Identifier: GPL-2.0-only
/*
 * What omnikvd refuses to start with, in one line each: settings, and places that are not its own.
 *
 * Exit status 2: wrong settings; 1: the place. One thread, against the real program.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "tests/harness/daemon_case.h"

static struct daemon_case the_daemon;
static char config[96];

static int set_up(void **state)
{
	(void)state;
	daemon_case_init(&the_daemon);
	snprintf(config, sizeof(config), "%s/omnikvd.conf", the_daemon.dir);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	daemon_case_fini(&the_daemon);
	return 0;
}

static void write_config(const char *text)
{
	int fd = open(config, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

/* Run with the file, and expect each of the texts in what it says. */
static void refuses(int status, const char *text, const char *said)
{
	const char *const options[] = { "--config", config, NULL };

	unlink(the_daemon.log);
	write_config(text);
	assert_int_equal(daemon_run(&the_daemon, options), status);
	if (!daemon_said(&the_daemon, said))
		fail_msg("for \"%s\" it did not say \"%s\"", text, said);
}

static int lines_said(void)
{
	int fd = open(the_daemon.log, O_RDONLY), nr = 0;
	char c;

	while (read(fd, &c, 1) == 1)
		nr += c == '\n';
	close(fd);
	return nr;
}

static void each_bad_line_is_named(void **state)
{
	(void)state;
	refuses(2, "[daemon]\npool = 16M\npol = 1\n", "omnikvd.conf:3: \"pol\" is no setting");
	refuses(2, "[daemon]\npool = 16M\nreserve = 1 GB\n", "omnikvd.conf:3: ");
	refuses(2, "[daemon]\npool = 16M\nclients = 0\n", "clients: 0 is out of range, 1 to 65536");
	refuses(2, "[daemon]\npool = 16M\nclients = many\n", "clients: \"many\" is no whole number");
	refuses(2, "[daemon]\npool = 16M\nmanager = maybe\n", "manager: \"maybe\" is neither yes nor no");
	refuses(2, "[daemon]\npool = 16M\ngranule = 5000\n", "granule: 5000 is no multiple of 4096");
	refuses(2, "[daemon]\npool =\n", "pool: nothing behind it");
	refuses(2, "pool = 16M\n", "omnikvd.conf:1: settings stand in [daemon]");
	refuses(2, "[daemon\npool = 16M\n", "omnikvd.conf:1: the section has no end");
	refuses(2, "[daemon]\n# nothing\n", "no pool; write --pool SIZE");
	refuses(2, "[daemon]\npool 16M\n   spill\n; fine\nclients = x\n", "omnikvd.conf:2: no setting; write name = value");
	assert_true(daemon_said(&the_daemon, "omnikvd.conf:3: no setting"));
	assert_true(daemon_said(&the_daemon, "omnikvd.conf:5: clients"));
	assert_int_equal(lines_said(), 3);
	unlink(config);
	{
		const char *const options[] = { "--config", config, NULL };

		assert_int_equal(daemon_run(&the_daemon, options), 2);
		assert_true(daemon_said(&the_daemon, "omnikvd.conf: No such file"));
	}
}

static void an_unknown_section_is_named_where_it_begins(void **state)
{
	(void)state;
	refuses(2, "[pool]\npool = 16M\nsize = 1\n", "omnikvd.conf:1: section [pool] is unknown; settings stand in [daemon]");
	assert_int_equal(lines_said(), 1);
	refuses(2, "[daemon]\npool = 16M\n\n[x]\n", "omnikvd.conf:4: section [x] is unknown");
	assert_int_equal(lines_said(), 1);
	/* A file of another kind altogether: one line. */
	refuses(2, "root:x:0:0:root\ndaemon:x:1:1:daemon\nbin:x:2:2:bin\n", "omnikvd.conf:1: settings stand in [daemon]; write that");
	assert_int_equal(lines_said(), 1);
	refuses(2, "[]\n[daemons]\n[daemon]\npool = 16M\n", "omnikvd.conf:1: section [] is unknown");
	assert_true(daemon_said(&the_daemon, "omnikvd.conf:2: section [daemons] is unknown"));
}

static void a_line_of_any_length_is_one_line(void **state)
{
	static char text[5000];

	(void)state;
	snprintf(text, sizeof(text), "[daemon]\npool = 16M\nspill = %04000d\nnone = 1\n", 7);
	refuses(2, text, "omnikvd.conf:3: the line is too long");
	assert_true(daemon_said(&the_daemon, "omnikvd.conf:4: \"none\""));
	assert_int_equal(lines_said(), 2);
}

static void bad_values_are_named_before_memory_is_taken(void **state)
{
	static const struct {
		const char *text, *said;
	} cases[] = {
		{ "[daemon]\npool = much\n", "omnikvd.conf:2: pool: size \"much\"" },
		{ "[daemon]\npool = 64Q\n", "omnikvd.conf:2: pool: size \"64Q\": unknown unit" },
		{ "[daemon]\npool = auto:16M\n", "omnikvd.conf:2: pool \"auto:16M\": write SIZE, embedded:SIZE[:FILE] or kmod:NAME" },
		{ "[daemon]\npool = daemon\n", "omnikvd.conf:2: pool \"daemon\": write SIZE" },
		{ "[daemon]\npool = embedded:16M:\n", "omnikvd.conf:2: pool \"embedded:16M:\": no file" },
		{ "[daemon]\npool = 16M\nreserve = 8Q\n", "omnikvd.conf:3: reserve: size \"8Q\": unknown unit" },
		{ "[daemon]\npool = 16M\ngroup = no-such-group\n", "omnikvd.conf:3: group \"no-such-group\": there is none" },
		{ "[daemon]\npool = 16M\nnuma = near\n", "omnikvd.conf:3: numa \"near\": write bind:NODES" },
		{ "[daemon]\npool = 16M\npool = 32M\n", "omnikvd.conf:3: pool: line 2 has it already" },
		{ "[daemon]\npool = 16M  # small\n", "omnikvd.conf:2: pool: a comment with # stands on a line of its own" },
		{ "[daemon]\npool = kmod:x\nmanager = no\n", "omnikvd.conf:3: manager: the pool is the module's" },
		{ "[daemon]\npool = kmod:x\nnuma = bind:0\n", "omnikvd.conf:3: numa: a pool of the module" },
		{ "[daemon]\npool = 16M\nspill = /nowhere\n", "omnikvd.conf:3: spill: there is no store yet at /nowhere; say with spill-size" },
		{ "[daemon]\npool = 16M\nspill = /proc\n", "omnikvd.conf:3: spill: there is no store yet at /proc; say with spill-size" },
		{ "[daemon]\npool = 16M\nspill = /dev/null\nspill-size = 1M\n", "omnikvd.conf:3: spill: /dev/null is neither" },
		{ "[daemon]\npool = 16M\nmanager = no\npins = 1M\n", "omnikvd.conf:4: pins: manager = no leaves the blocks to a client" },
		{ "[daemon]\npool = 16M\nmanager = no\nspill = /tmp\nspill-size = 64M\n", "omnikvd.conf:4: spill: manager = no leaves" },
		{ "[daemon]\npool = 16M\npins = few\n", "omnikvd.conf:3: pins: size \"few\"" },
		{ "[daemon]\npool = 16M\nspill-size = 16M\n", "omnikvd.conf:3: spill-size: there is no spill" },
		{ "\xef\xbb\xbf[daemon]\npool = 64Q\n", "omnikvd.conf:2: pool: size" },
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		refuses(2, cases[i].text, cases[i].said);
		assert_int_equal(lines_said(), 1);
	}
	/* Nothing is left where the start failed. */
	assert_int_equal(access(the_daemon.socket, F_OK), -1);
}

/* What the library would refuse late, by names that are its own. */
static void what_does_not_fit_the_pool_is_named_as_it_was_typed(void **state)
{
	static const struct {
		const char *name, *value, *said;
	} cases[] = {
		{ "pins", "60M", "pins: 62914560 are more than a half of the pool of 67108864; give less" },
		{ "granule", "4M", "granule: 4M is out of range, 4096 to 2097152" },
		{ "numa", "bind:63", "numa \"bind:63\": no such nodes" },
		{ "pool", "1K", "pool of 1024 bytes: less than one granule of 4096" },
		{ "pool", "100000T", "pool of 109951162777600000 bytes: over 4294967040 granules of 4096" },
	};
	char text[256], said[200], option[140];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *pool = strcmp(cases[i].name, "pool") ? "pool = 64M\n" : "\n";
		const char *const options[] = { "--pool=64M", option, NULL };

		snprintf(text, sizeof(text), "[daemon]\n%s%s = %s\n", pool, cases[i].name, cases[i].value);
		snprintf(said, sizeof(said), "omnikvd.conf:3: %s", cases[i].said);
		refuses(2, text, said);
		assert_int_equal(lines_said(), 1);
		unlink(the_daemon.log);
		snprintf(option, sizeof(option), "--%s=%s", cases[i].name, cases[i].value);
		snprintf(said, sizeof(said), "--%s", cases[i].said);
		assert_int_equal(daemon_run(&the_daemon, options), 2);
		if (!daemon_said(&the_daemon, said))
			fail_msg("for \"%s\" it did not say \"%s\"", option, said);
		assert_int_equal(lines_said(), 1);
	}
	assert_int_equal(access(the_daemon.socket, F_OK), -1);
}

static void only_a_file_of_moderate_size_is_read(void **state)
{
	char fifo[96], large[96];
	const struct {
		const char *path, *said;
	} cases[] = {
		{ fifo, "fifo: not a regular file" },
		{ the_daemon.dir, ": not a regular file" },
		{ "/dev/zero", "/dev/zero: not a regular file" },
		{ large, "large: over 1048576 bytes" },
	};
	size_t i;
	int fd;

	(void)state;
	snprintf(fifo, sizeof(fifo), "%.80s/fifo", the_daemon.dir);
	snprintf(large, sizeof(large), "%.80s/large", the_daemon.dir);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	fd = open(large, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(ftruncate(fd, (1 << 20) + 1), 0);
	close(fd);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *const options[] = { "-c", cases[i].path, NULL };

		unlink(the_daemon.log);
		assert_int_equal(daemon_run(&the_daemon, options), 2);
		if (!daemon_said(&the_daemon, cases[i].said))
			fail_msg("for %s it did not say \"%s\"", cases[i].path, cases[i].said);
		assert_int_equal(lines_said(), 1);
	}
}

static void says_once(const char *option, const char *said)
{
	const char *const options[] = { option, NULL };

	unlink(the_daemon.log);
	assert_int_equal(daemon_run(&the_daemon, options), 2);
	assert_true(daemon_said(&the_daemon, said));
	assert_int_equal(lines_said(), 1);
}

static void each_bad_option_is_named(void **state)
{
	(void)state;
	says_once("--frob", "unknown option '--frob'");
	says_once("--pools=1", "unknown option '--pools=1'");
	says_once("-x", "unknown option '-x'");
	says_once("pool", "unknown word 'pool'");
	says_once("--pool", "option --pool needs a value");
	says_once("-c", "option -c needs a value");
	says_once("--pool=", "--pool: nothing behind it");
	says_once("--socket=/1123456789/2123456789/3123456789/4123456789/5123456789/6123456789/7123456789/8123456789/9123456789/tooolong",
		  "--socket /1123456789/");
	says_once("--clients=0", "--clients: 0 is out of range");
}

static void options_go_before_the_file(void **state)
{
	const char *const options[] = { "--config", config, "--pool", "16M", "--reserve", "0", NULL };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_pool *pool;
	char spec[128];

	(void)state;
	write_config("\xef\xbb\xbf# a comment\n[daemon]\n  pool = 64M   ; the file's\nclients = 3\n");
	daemon_start(&the_daemon, options);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.usable_bytes, 16 << 20);
	omnikv_pool_close(pool);
	/* A file that became bad changes nothing; a good one says what cannot change. */
	write_config("[daemon]\nreserve = x\n");
	kill(the_daemon.pid, SIGHUP);
	while (!daemon_said(&the_daemon, "the settings stay as they were"))
		sleep_ms(5);
	write_config("[daemon]\nclients = 4\n");
	kill(the_daemon.pid, SIGHUP);
	while (!daemon_said(&the_daemon, "clients cannot change while the daemon runs"))
		sleep_ms(5);
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
}

static void every_changed_setting_that_needs_a_restart_is_named(void **state)
{
	const char *const options[] = { "--config", config, NULL };

	(void)state;
	write_config("[daemon]\npool = 16M\n");
	daemon_start(&the_daemon, options);
	write_config("[daemon]\npool = 32M\nclients = 4\nreserve = 1M\ntokens = yes\n");
	kill(the_daemon.pid, SIGHUP);
	while (!daemon_said(&the_daemon, "settings read again"))
		sleep_ms(5);
	assert_true(daemon_said(&the_daemon, "pool, clients and tokens cannot change while the daemon runs; restart it\n"));
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
}

static void a_reserve_that_no_client_gets_is_said(void **state)
{
	const char *const options[] = { "--pool", "16M", "--reserve", "1025K", "--config", config, NULL };

	(void)state;
	write_config("[daemon]\n");
	daemon_start(&the_daemon, options);
	while (!daemon_said(&the_daemon, "--reserve: it is more than a 16th of the pool; each client keeps 1048576 bytes\n"))
		sleep_ms(5);
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);

	/* Nor of the file, or of one that is read again; a 16th is right, and the default is nobody's wish. */
	unlink(the_daemon.log);
	write_config("[daemon]\npool = 16M\nreserve = 1M\n");
	daemon_start(&the_daemon, options + 4);
	write_config("[daemon]\npool = 16M\n\nreserve = 2M\n");
	kill(the_daemon.pid, SIGHUP);
	while (!daemon_said(&the_daemon, "omnikvd.conf:4: reserve: it is more than a 16th of the pool; each client keeps 1048576 bytes\n"))
		sleep_ms(5);
	assert_false(daemon_said(&the_daemon, "omnikvd.conf:3: "));
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	unlink(the_daemon.log);
	daemon_start(&the_daemon, (const char *const []){ "--pool", "16M", NULL });
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	assert_false(daemon_said(&the_daemon, "reserve"));
}

static void a_reload_without_a_file_says_that_there_is_none(void **state)
{
	(void)state;
	daemon_start(&the_daemon, (const char *const []){ "--pool", "16M", NULL });
	kill(the_daemon.pid, SIGHUP);
	while (!daemon_said(&the_daemon, "there is no file of settings to read again: none was given with --config"))
		sleep_ms(5);
	assert_false(daemon_said(&the_daemon, "settings read again"));
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
}

static void each_bad_option_of_a_command_line_is_named(void **state)
{
	const char *const options[] = { "--pool=64Q", "--clients=0", "--manager=maybe", NULL };

	(void)state;
	assert_int_equal(daemon_run(&the_daemon, options), 2);
	assert_true(daemon_said(&the_daemon, "--pool: size \"64Q\""));
	assert_true(daemon_said(&the_daemon, "--clients: 0 is out of range"));
	assert_true(daemon_said(&the_daemon, "--manager: \"maybe\" is neither yes nor no"));
	assert_int_equal(lines_said(), 3);
}

static void another_ones_place_is_left_alone(void **state)
{
	const char *const options[] = { "--pool", "16M", NULL };
	struct daemon_case second = the_daemon;
	struct stat st;
	char said[64];
	int fd;

	(void)state;
	/* A file that is no socket. */
	fd = open(the_daemon.socket, O_WRONLY | O_CREAT, 0600);
	close(fd);
	assert_int_equal(daemon_run(&the_daemon, options), 1);
	assert_true(daemon_said(&the_daemon, "no socket of this user's; remove it"));
	assert_int_equal(stat(the_daemon.socket, &st), 0);
	unlink(the_daemon.socket);
	/* A directory that others may write to. */
	assert_int_equal(chmod(the_daemon.dir, 0777), 0);
	assert_int_equal(daemon_run(&the_daemon, options), 1);
	assert_true(daemon_said(&the_daemon, "others may write to it (mode 0777)"));
	assert_int_equal(chmod(the_daemon.dir, 0700), 0);
	assert_int_equal(chmod(the_daemon.dir, 01777), 0);
	assert_int_equal(daemon_run(&the_daemon, options), 1);
	assert_true(daemon_said(&the_daemon, "others may write to it (mode 1777)"));
	assert_int_equal(chmod(the_daemon.dir, 0700), 0);
	if (!geteuid()) {
		assert_int_equal(chown(the_daemon.dir, 65534, (gid_t)-1), 0);
		assert_int_equal(daemon_run(&the_daemon, options), 1);
		assert_true(daemon_said(&the_daemon, "belongs to user 65534"));
		assert_int_equal(chown(the_daemon.dir, 0, (gid_t)-1), 0);
	}
	/* A daemon that lives; but not the socket that a killed one left. */
	daemon_start(&the_daemon, options);
	assert_int_equal(daemon_run(&second, options), 1);
	snprintf(said, sizeof(said), "another omnikvd serves it, process %d", the_daemon.pid);
	assert_true(daemon_said(&the_daemon, said));
	daemon_kill(&the_daemon);
	assert_int_equal(access(the_daemon.socket, F_OK), 0);
	daemon_start(&the_daemon, options);
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
}

/* In a child: the lock of the socket, for so long. */
static pid_t hold_lock(uint32_t ms)
{
	char path[160], text[16], byte = 0;
	int said[2], fd, len;
	pid_t pid;

	assert_int_equal(pipe(said), 0);
	pid = fork();
	if (!pid) {
		snprintf(path, sizeof(path), "%s.lock", the_daemon.socket);
		fd = open(path, O_RDWR | O_CREAT, 0600);
		len = snprintf(text, sizeof(text), "%d\n", getpid());
		if (flock(fd, LOCK_EX) || write(fd, text, (size_t)len) != len || write(said[1], &byte, 1) != 1)
			_exit(1);
		sleep_ms(ms);
		_exit(0);
	}
	assert_int_equal(read(said[0], &byte, 1), 1);
	close(said[0]);
	close(said[1]);
	return pid;
}

/* A killed one has its lock until its memory is taken down. */
static void a_daemon_that_is_about_to_be_gone_is_waited_for_and_another_is_named(void **state)
{
	const char *const options[] = { "--pool", "16M", NULL };
	char said[64];
	pid_t pid;

	(void)state;
	pid = hold_lock(1000);
	daemon_start(&the_daemon, options);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	pid = hold_lock(60000);
	assert_int_equal(daemon_run(&the_daemon, options), 1);
	snprintf(said, sizeof(said), "another omnikvd serves it, process %d; end that", pid);
	assert_true(daemon_said(&the_daemon, said));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static uint32_t names_in(const char *path)
{
	DIR *dir = opendir(path);
	uint32_t nr = 0;

	assert_non_null(dir);
	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr - 2;
}

static void no_file_is_left_where_a_start_failed(void **state)
{
	static const char *const pools[] = { "embedded:16M:/nowhere/pool", "kmod:none", "1000000G" };
	char taken[160];
	size_t i;
	int fd;

	(void)state;
	for (i = 0; i <= sizeof(pools) / sizeof(pools[0]); i++) {
		const char *const options[] = { "--pool", i ? pools[i - 1] : "16M", i ? NULL : "--socket", taken, NULL };

		/* First a name that is no socket: behind the lock, before the pool. */
		snprintf(taken, sizeof(taken), "%s/taken", the_daemon.dir);
		fd = open(taken, O_WRONLY | O_CREAT, 0600);
		close(fd);
		assert_int_equal(daemon_run(&the_daemon, options), i == 3 ? 2 : 1);
		unlink(taken);
		unlink(the_daemon.log);
		assert_int_equal(names_in(the_daemon.dir), 0);
	}
	/* Nor of one that was told to end. */
	daemon_start(&the_daemon, (const char *const []){ "--pool", "16M", NULL });
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	unlink(the_daemon.log);
	assert_int_equal(names_in(the_daemon.dir), 0);
}

static void another_ones_file_is_no_pool(void **state)
{
	char pool[128], *file = pool + strlen("embedded:16M:");
	const char *const options[] = { "--pool", pool, NULL };
	struct stat st;
	int fd;

	(void)state;
	if (geteuid())
		skip();
	snprintf(pool, sizeof(pool), "embedded:16M:%.80s/pool", the_daemon.dir);
	fd = open(file, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(fchown(fd, 65534, (gid_t)-1), 0);
	close(fd);
	assert_int_equal(daemon_run(&the_daemon, options), 1);
	assert_true(daemon_said(&the_daemon, "the file belongs to user 65534"));
	assert_int_equal(lines_said(), 1);
	/* It is as it was. */
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_size, 0);
}

/* As RestrictAddressFamilies= of a unit does it: no socket of this family from now on. */
static int forbid_family(void *opaque)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)*(const int *)opaque, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) ? -errno : 0;
}

/* libzmq ends the process there. */
static void events_where_the_network_is_forbidden_are_refused(void **state)
{
	static const char *const options[] = { "--pool", "16M", "--events", "tcp://127.0.0.1:5557", NULL };
	int families[] = { AF_INET, AF_NETLINK }, status;
	size_t i;

	(void)state;
	the_daemon.before_exec = forbid_family;
	for (i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		the_daemon.opaque = &families[i];
		unlink(the_daemon.log);
		status = daemon_run(&the_daemon, options);
		if (daemon_said(&the_daemon, "built without libzmq"))
			skip();
		assert_int_equal(status, 1);
		assert_true(daemon_said(&the_daemon, "a unit's RestrictAddressFamilies= must have AF_INET, AF_INET6 and AF_NETLINK"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(each_bad_line_is_named),
		TEST(an_unknown_section_is_named_where_it_begins),
		TEST(a_line_of_any_length_is_one_line),
		TEST(bad_values_are_named_before_memory_is_taken),
		TEST(what_does_not_fit_the_pool_is_named_as_it_was_typed),
		TEST(only_a_file_of_moderate_size_is_read),
		TEST(each_bad_option_is_named),
		TEST(options_go_before_the_file),
		TEST(every_changed_setting_that_needs_a_restart_is_named),
		TEST(a_reserve_that_no_client_gets_is_said),
		TEST(a_reload_without_a_file_says_that_there_is_none),
		TEST(each_bad_option_of_a_command_line_is_named),
		TEST(another_ones_place_is_left_alone),
		TEST(a_daemon_that_is_about_to_be_gone_is_waited_for_and_another_is_named),
		TEST(another_ones_file_is_no_pool),
		TEST(events_where_the_network_is_forbidden_are_refused),
		TEST(no_file_is_left_where_a_start_failed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
