/* Answers, for each text on standard input, how Postgres' own scanner and parser read it.
 *
 * A question is its length in bytes (32 bits, this machine's order) and the text. An answer is two parts, each a byte
 * (1: accepted, 0: refused), a length of 32 bits, and as many bytes: the parse tree as JSON or the error's text, and the
 * tokens as libpg_query's `ScanResult`. A process of its own, so that whatever happens to it is no concern of the asker.
 */
#include <pg_query.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(uint8_t accepted, const char *bytes, size_t length) {
    uint32_t size = (uint32_t)length;
    fwrite(&accepted, 1, 1, stdout);
    fwrite(&size, sizeof size, 1, stdout);
    fwrite(bytes, 1, length, stdout);
}

int main(void) {
    uint32_t size;
    char *text = NULL;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        text = realloc(text, (size_t)size + 1);
        if (text == NULL || fread(text, 1, size, stdin) != size) return 1;
        text[size] = '\0';

        PgQueryParseResult parsed = pg_query_parse(text);
        if (parsed.error)
            say(0, parsed.error->message, strlen(parsed.error->message));
        else
            say(1, parsed.parse_tree, strlen(parsed.parse_tree));
        pg_query_free_parse_result(parsed);

        PgQueryScanResult scanned = pg_query_scan(text);
        if (scanned.error)
            say(0, "", 0);
        else
            say(1, scanned.pbuf.data, scanned.pbuf.len);
        pg_query_free_scan_result(scanned);
        fflush(stdout);
    }
    free(text);
    return 0;
}
