-- What the lifetime of orders needs: finding the unpaid ones whose time is up without reading all the
-- others, and a note of what a cancellation has still to tell Redis. As in 0002, each step looks first
-- whether it is needed.

-- An existing table may have zero dates as defaults, which strict modes refuse to copy.
SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION';

-- Unpaid orders by age. An order leaves that end of the index when it is paid or cancelled, so the
-- search reads what it cancels and nothing else.
SET @step = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'tb_voucher_order' AND index_name = 'idx_status_create_time') > 0, 'DO 0',
  'ALTER TABLE tb_voucher_order ADD KEY idx_status_create_time (status, create_time)');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

-- Orders that were cancelled, and of which the gate in Redis (seckill:stock, seckill:order) has not
-- been told yet: written in the transaction that cancels, removed once it has been told. A process
-- that dies in between leaves the row to whoever comes next.
CREATE TABLE IF NOT EXISTS tb_stock_return (
  order_id    BIGINT          NOT NULL,
  voucher_id  BIGINT UNSIGNED NOT NULL,
  user_id     BIGINT UNSIGNED NOT NULL,
  create_time TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (order_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
