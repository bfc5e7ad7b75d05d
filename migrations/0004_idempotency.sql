-- Which admin writes were made: publishing, adding stock, creating and changing shops. A row is written in the
-- transaction of its write, so that a commit whose reply was lost can be looked up, and a repeated request finds what it
-- did the first time. Rows older than a day are removed by later writes. A Java node knows nothing of this table.
CREATE TABLE IF NOT EXISTS tb_idempotency (
  id              BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  operation       VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  idempotency_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
                  COMMENT 'the header Idempotency-Key, else a random one',
  fingerprint     BINARY(16)      NOT NULL COMMENT 'XXH3 of the request: a key belongs to one',
  result          BIGINT          NULL COMMENT 'the answer: an id, or the new stock',
  create_time     TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (id),
  UNIQUE KEY uk_operation_key (operation, idempotency_key),
  KEY idx_create_time (create_time)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
