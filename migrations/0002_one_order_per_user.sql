-- What hm-dianping's tables lack: the strategy and size of a sale, and one order per user and voucher
-- as a law of the database. Each step looks first whether it is needed, in SQL that MySQL and MariaDB
-- both run (ADD COLUMN IF NOT EXISTS is MariaDB's alone).

-- An existing table may have zero dates as defaults, which strict modes refuse to copy.
SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION';

-- issued: how many were put on sale; NULL where a Java node published the sale. The audit holds
-- orders + stock against it.
SET @step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'tb_seckill_voucher' AND column_name = 'issued') > 0, 'DO 0',
  'ALTER TABLE tb_seckill_voucher ADD COLUMN issued INT NULL COMMENT ''put on sale in all''');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

-- strategy: how this sale sells. The default is the strategy of a sale that a Java node publishes.
SET @step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'tb_seckill_voucher' AND column_name = 'strategy') > 0, 'DO 0',
  'ALTER TABLE tb_seckill_voucher ADD COLUMN strategy VARCHAR(32) NOT NULL DEFAULT ''reentrant-lock''');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

-- unguarded: 1 on orders of lab sales whose strategy is meant to fail; the unique index skips them.
SET @step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'tb_voucher_order' AND column_name = 'unguarded') > 0, 'DO 0',
  'ALTER TABLE tb_voucher_order ADD COLUMN unguarded TINYINT NOT NULL DEFAULT 0');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

-- buyer: whom the unique index counts: nobody where the order is unguarded or cancelled (a cancelled
-- order frees the user's place), else the user. Generated, so rows written by a Java node, which
-- knows nothing of it, are guarded too.
SET @step = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'tb_voucher_order' AND column_name = 'buyer') > 0, 'DO 0',
  'ALTER TABLE tb_voucher_order ADD COLUMN buyer BIGINT UNSIGNED
     GENERATED ALWAYS AS (CASE WHEN unguarded = 1 OR status = 4 THEN NULL ELSE user_id END) STORED');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

SET @step = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'tb_voucher_order' AND index_name = 'uk_one_order_per_user') > 0, 'DO 0',
  'ALTER TABLE tb_voucher_order ADD UNIQUE KEY uk_one_order_per_user (voucher_id, buyer)');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

-- For "has this user ordered?" and "this user's orders, newest first" (ids rise with time).
SET @step = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'tb_voucher_order' AND index_name = 'idx_user_voucher') > 0, 'DO 0',
  'ALTER TABLE tb_voucher_order ADD KEY idx_user_voucher (user_id, voucher_id)');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

-- An existing tb_user may lack the unique phone that sign-in relies on.
SET @step = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'tb_user' AND column_name = 'phone' AND non_unique = 0) > 0, 'DO 0',
  'ALTER TABLE tb_user ADD UNIQUE KEY uk_phone (phone)');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

-- Likewise an index for a shop's vouchers, and one for the shops of a type.
SET @step = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'tb_voucher' AND column_name = 'shop_id' AND seq_in_index = 1) > 0, 'DO 0',
  'ALTER TABLE tb_voucher ADD KEY idx_shop (shop_id)');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;

SET @step = IF((SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE()
    AND table_name = 'tb_shop' AND column_name = 'type_id' AND seq_in_index = 1) > 0, 'DO 0',
  'ALTER TABLE tb_shop ADD KEY idx_type (type_id)');
PREPARE step FROM @step;
EXECUTE step;
DEALLOCATE PREPARE step;
